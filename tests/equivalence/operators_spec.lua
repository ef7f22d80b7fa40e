--- Every operator with a derivative rule, cut over two ranks in every way that its annotation
--- allows, has the loss and the gradients of autograd on one device.
local lower = require 'nnscaler._C.lower'
local on_ranks = require 'tests.equivalence.support.on_ranks'

local all, cases = {}, require('tests.lua.derivative.cases').all(1)
for _, rule in ipairs(lower.rules()) do
  local constant = rule.kind == 'constant' and not cases[rule.op]
  if not rule.op:find '^comm::' and not constant then all[#all + 1] = rule.op end
end

-- Operators whose annotation lets no dimension be cut, those that a graph records as reshape, and
-- what a derivative or lowering alone calls.
local WHOLE = {
  'aten::_unsafe_view', 'aten::diag', 'aten::index_put', 'aten::max', 'aten::min',
  'aten::take_along_dim', 'aten::unflatten', 'aten::view', 'aten::view_as',
  'nnscaler::linear_cross_entropy_gradients', 'nnscaler::tiled_linear',
}

local function run(ops)
  return on_ranks(2, 'tests.equivalence.operators_rank', { ops = ops, seeds = { 1 } })[1]
end

describe('operators in parts,', function()
  local SIZE = 20
  local ways, cut = 0, {}
  for first = 1, #all, SIZE do
    local ops = {}
    for i = first, math.min(#all, first + SIZE - 1) do ops[#ops + 1] = all[i] end
    it(('%s to %s'):format(ops[1], ops[#ops]), function()
      local problems, ok, result = {}, pcall(run, ops)
      if ok then
        problems, ways = result.problems, ways + #result.covered
        for _, op in ipairs(result.rules) do cut[op] = true end
      else -- an error ends the ranks: which operator?
        for _, op in ipairs(ops) do
          local fine, one = pcall(run, { op })
          if fine then
            ways = ways + #one.covered
            for _, rule in ipairs(one.rules) do cut[rule] = true end
            for _, p in ipairs(one.problems) do problems[#problems + 1] = p end
          else
            problems[#problems + 1] = tostring(one)
          end
        end
        if #problems == 0 then
          problems[1] = 'each alone passes; together: ' .. tostring(result)
        end
      end
      assert.equal('', table.concat(problems, '\n'))
    end)
  end
  it('every rule but those that cannot be', function()
    local whole = {}
    for _, op in ipairs(all) do
      if not cut[op] then whole[#whole + 1] = op end
    end
    print(('%d ways to cut operators of %d of %d rules'):format(ways, #all - #whole, #all))
    assert.same(WHOLE, whole)
  end)
end)
