--- The example of a hand-written loop, started as people start it: any number of ranks prints what
--- one rank prints.
local shell = require 'tests.cli.support.shell'

local function numbers(more)
  local out, code = shell.nnscaler('examples/library/loop.lua steps=3 ' .. more)
  assert.equal(0, code, out)
  local list = {}
  for loss, norm in out:gmatch 'loss (%S+)  gnorm (%S+)' do
    list[#list + 1] = tonumber(loss)
    list[#list + 1] = tonumber(norm)
  end
  return list
end

describe('the loop of the library', function()
  it('prints the same on one rank and on several', function()
    local want = numbers ''
    assert.equal(6, #want)
    for _, more in ipairs { 'ranks=2', 'ranks=2 plan=1', 'ranks=4 plan=2' } do
      for i, x in ipairs(numbers(more)) do
        assert.is_true(math.abs(x - want[i]) <= 2e-5 * math.max(1, want[i]), more)
      end
    end
  end)
end)
