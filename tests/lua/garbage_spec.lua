--- Steps on several ranks leave no tensors to the Lua collector, which sees only their handles and
--- would let gigabytes grow.
local on_ranks = require 'tests.equivalence.support.on_ranks'

describe('garbage of a step', function()
  for _, case in ipairs { { 'dp', 1 }, { 'fsdp', 1 }, { 'data', 2 }, { 'tp', 2 }, { 'megatron', 2 },
    { 'pp', 2 } } do
    it('is not a tensor of size under ' .. case[1], function()
      local seen = on_ranks(2, 'tests.lua.support.garbage_rank',
        { policy = case[1], plan = case[2] })[1]
      local growth = (seen[12] - seen[4]) / 8
      -- Losses and norms: a hidden state would be 8,192 bytes, a gradient up to 65,536.
      assert.is_true(growth <= 256, ('%d bytes a step'):format(growth))
    end)
  end
end)
