-- Every derivative rule in bfloat16 against float64, beside LibTorch's autograd in bfloat16.
local cases = require 'tests.lua.derivative.cases'
local harness = require 'tests.lua.derivative.harness'
local lower = require 'nnscaler._C.lower'

local calls = cases.all(1, true)

describe('in bfloat16 the derivative of', function()
  local compared, total = 0, 0
  setup(function() require('nnscaler.log').set_level 'error' end)
  teardown(function() require('nnscaler.log').set_level 'info' end)

  for _, rule in ipairs(lower.rules()) do
    if rule.kind ~= 'constant' and calls[rule.op] then
      it(rule.op, function()
        for k, call in ipairs(calls[rule.op]) do
          if k <= 2 and not call.fallback and not call.float32 then
            local problem, done = harness.compare_rounded(call)
            assert(not problem, ('case %d of %s: %s'):format(k, call.op, tostring(problem)))
            total = total + 1
            if done then compared = compared + 1 end
          end
        end
      end)
    end
  end

  it('these operators was compared', function()
    print(('  %d of %d calls, as far as LibTorch has them in bfloat16'):format(compared, total))
    assert.is_true(compared > 200)
  end)
end)
