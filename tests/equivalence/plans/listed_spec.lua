--- Operators that PyTorch users call, most of them outside of the operator table, some with
--- arguments by keyword only or without a Meta kernel: each trains as with eager=true, on one
--- device and under plans. What was found stands in docs/operators.md, which
--- NNSCALER_UPDATE=1 writes.
local C = require 'nnscaler._C.graph'
local base = require 'nnscaler._C.base'
local listed = require 'tests.equivalence.plans.listed_models'
local models = require 'tests.equivalence.plans.models'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local trace = require 'nnscaler.trace'
local T = require 'nnscaler.tensor'

local plans = {
  { name = 'one device', policy = 'dp', plan = 1, ranks = 1 },
  { name = 'tp 2', policy = 'tp', plan = 2, ranks = 2 },
  { name = 'data 2', policy = 'data', plan = 2, ranks = 2 },
  { name = 'pp 2', policy = 'pp', plan = 2, ranks = 2 },
}

-- Where what was run could not be: the shape of what they return depends on data.
local REFUSED = { boolindex = true, masked_select = true, nonzero = true, unique = true }

local found = {}

local function run(plan, names)
  local cells = {}
  for i, name in ipairs(names) do
    cells[i] = { model = 'op ' .. name, policy = plan.policy, plan = plan.plan,
      ranks = plan.ranks, micro = 2, config = plan.config }
  end
  return on_ranks(plan.ranks, 'tests.equivalence.plans.hidden_rank',
    { module = 'tests.equivalence.plans.listed_models', cells = cells })
end

local function check(name, by_rank, i)
  for rank, results in ipairs(by_rank) do
    local result = results[i]
    local where = ('%s, rank %d'):format(name, rank - 1)
    if REFUSED[name] then
      assert.matches('%[trace.shape%] the shape that .* returns depends on data', result.error)
    else
      assert.is_nil(result.error, where)
      assert.equal('', table.concat(result.bad, '\n'), where)
    end
  end
end

for _, plan in ipairs(plans) do
  describe(plan.name .. ',', function()
    setup(function() found[plan.name] = run(plan, listed.names) end)
    for i, name in ipairs(listed.names) do
      it(name, function() check(name, found[plan.name], i) end)
    end
  end)
end

describe('under hybrid 2 × 2,', function()
  local hybrid = { policy = 'hybrid', plan = 4, ranks = 4, config = { pipeline_nstages = 2 } }
  for case, names in require('nnscaler.sorted').sorted_pairs {
    unknown_operator = { 'sinc', 'hypot' },
    keyword_only_operator = { 'cross', 'linalg_solve', 'cholesky' },
  } do
    it(case, function()
      local results = run(hybrid, names)
      for i, name in ipairs(names) do check(name, results, i) end
    end)
  end
end)

-- The operators that a model calls, as its graph has them; those outside of the table with a star.
local function calls(name)
  local made = models.new('op ' .. name)
  made:assign_paths()
  local sample = models['op ' .. name].sample(T.generator(1))
  local ok, graph = pcall(trace.trace, made, { sample })
  if not ok then return 'refused: the shape of its result depends on data' end
  local list, seen, known = {}, {}, {}
  for _, row in ipairs(C.ops()) do known[row.name] = true end
  for _, node in ipairs(graph:nodes()) do
    if not (node.module == 'a' or seen[node.op]) then
      seen[node.op] = true
      local inside = known[node.op] or known[node.op:match '^[^.]+']
      list[#list + 1] = ('`%s`%s'):format(node.op:gsub('^aten::', ''), inside and '' or '*')
    end
  end
  return table.concat(list, ' ')
end

it('docs/operators.md shows what was run', function()
  local page, out = 'docs/operators.md', {}
  for i, name in ipairs(listed.names) do
    local how = 'as eager'
    for _, plan in ipairs(plans) do
      for _, results in ipairs(found[plan.name]) do
        if results[i].error or #results[i].bad > 0 then how = 'not' end
      end
    end
    out[#out + 1] = ('| %s | %s | %s |\n'):format(name, calls(name), how)
  end
  local head = base.file_read(page):match '^(.-\n| name | [^\n]+\n|[-|]+\n)'
  local now = head .. table.concat(out)
  if os.getenv 'NNSCALER_UPDATE' then base.file_write(page, now) end
  assert.equal(now, base.file_read(page))
end)
