--- Each primitive of a policy through lowering, on rank threads in float64, against one device.
local base = require 'nnscaler._C.base'
local cases = require 'tests.equivalence.primitives.cases'
local comm = require 'nnscaler._C.comm'
local sorted_keys = require('nnscaler.sorted').sorted_keys

describe('the primitive', function()
  for _, name in ipairs(sorted_keys(cases)) do
    local case = cases[name]
    it(name, function()
      local results = comm.run_local(case.world or case.plan, 'tests.equivalence.primitives.rank',
        base.json_encode { case = name })
      for r, text in ipairs(results) do
        local result = base.json_decode(text)
        assert.is_true(#result.bad == 0, ('rank %d:\n  %s\n%s'):format(r - 1,
          table.concat(result.bad, '\n  '), result.plan))
        if case.cut then assert.is_true(result.cut >= case.cut, 'no weight is cut') end
      end
    end)
  end
end)
