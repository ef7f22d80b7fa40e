--- Host cost of an operator call from Lua on 8×8 tensors, without autograd as programs run it:
--- microseconds of CPU, the least of many rounds. Run: nnscaler tests/bench/operators.lua
local T = require 'nnscaler.tensor'
local C = require 'nnscaler._C.tensor'
local aten = require('nnscaler.ops').aten
local release = require('nnscaler.runtime').release

local x, y = T.full({ 8, 8 }, 0.5), T.full({ 8, 8 }, 0.25)
local add, mm, t = aten.add, aten.mm, aten.t
local calls = {
  { 'add', function() for _ = 1, 1000 do release(add(x, y)) end end },
  { 'mm', function() for _ = 1, 1000 do release(mm(x, y)) end end },
  { 't', function() for _ = 1, 1000 do release(t(x)) end end },
}

C.set_num_threads(1)
C.without_autograd(function()
  for _, call in ipairs(calls) do
    local best = math.huge
    for _ = 1, 200 do
      local start = os.clock()
      call[2]()
      best = math.min(best, os.clock() - start)
    end
    print(('%s %.4f'):format(call[1], best * 1e3))
  end
end)
