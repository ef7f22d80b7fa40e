-- Every row of the operator table against the real kernels: inferred types, and each split that the
-- annotation allows against the whole call.
local C = require 'nnscaler._C.graph'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local examples = require 'nnscaler.verify.examples'
local verify = require 'nnscaler.verify.op'

local calls = examples.all(1)

-- Annotated for their shapes, but every dim is frozen, or elements are undefined.
local whole = {}
for name in ('histc max min median empty_like'):gmatch '%S+' do whole['aten::' .. name] = true end

describe('the operator table', function()
  for _, row in ipairs(C.ops()) do
    it(row.name, function()
      local list = calls[row.name]
      assert.is_table(list, 'no example call in lua/nnscaler/XX')
      local splits = 0
      for k, call in ipairs(list) do
        if call.refused then
          local ok, err = pcall(verify.check, call.op, call.args)
          assert.is_false(ok)
          assert.matches('depends on the data', tostring(err), 1, true)
        else
          local report = verify.check(call.op, call.args, call)
          splits = splits + report.splits
          assert.same({}, report.problems, ('example %d of %s'):format(k, report.op))
        end
      end
      if row.annotated and not whole[row.name] then
        assert.is_true(splits > 0, 'no example can be split')
      end
    end)
  end

  it('has no example without a row', function()
    local known = {}
    for _, row in ipairs(C.ops()) do known[row.name] = true end
    for name in sorted_pairs(calls) do
      assert.is_true(known[name] or false, name)
    end
  end)
end)
