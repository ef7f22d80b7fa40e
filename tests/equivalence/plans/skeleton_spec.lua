--- The programs that a skeleton gives to the ranks of a plan are those that each rank makes alone,
--- byte for byte: for the plans of matrix.lua and random ones, of training and evaluation graphs.
--- Nothing runs.
local T = require 'nnscaler.tensor'
local lower = require 'nnscaler._C.lower'
local matrix = require 'tests.equivalence.plans.matrix'
local models = require 'tests.equivalence.plans.models'
local policies = require 'nnscaler.policies'
local random_plans = require 'tests.equivalence.plans.random_plans'
local trace = require 'nnscaler.trace'

local RANDOM = 60 -- random plans

local graphs = {}

local function graphs_of(model)
  if not graphs[model] then
    local sample = models[model].sample(T.generator(11), 1)
    graphs[model] = { trace(models.new(model), { sample }, { training = true }),
      (trace(models.new(model), { sample }, { training = false })) }
  end
  return graphs[model][1], graphs[model][2]
end

local function plan_of(cell)
  return policies.run(graphs_of(cell.model), cell.policy, {
    plan_ngpus = cell.plan, runtime_ngpus = cell.ranks, pas_config = cell.config or {},
    micro_batches = math.ceil(cell.micro / (cell.ranks / cell.plan)),
  })
end

-- The number of lowerings, or what differs.
local function compare(cell)
  local training, evaluation = graphs_of(cell.model)
  local plan = plan_of(cell)
  local first = lower.skeleton(training, { plan = plan })
  local later = lower.skeleton(evaluation, { plan = plan, first = first })
  for rank = 0, cell.ranks - 1 do
    for mode, pair in pairs {
      training = { first, lower.lower(training, { plan = plan, rank = rank }) },
      evaluation = { later, lower.lower(evaluation, { plan = plan, rank = rank, first = first }) },
    } do
      local shared, alone = pair[1]:project(rank), pair[2]
      for _, form in ipairs { 'text', 'json', 'lua' } do
        if shared[form](shared) ~= alone[form](alone) then
          return nil, ('%s, %s: the %s of rank %d differs in %s'):format(cell.model, cell.name,
            mode, rank, form)
        end
      end
      for _, form in ipairs { 'parameters', 'buffers' } do assert.same(alone[form](alone),
        shared[form](shared)) end
    end
  end
  return #first:classes()
end

local function wanted(plan, model)
  if matrix.refused[model] and matrix.refused[model][plan.name] then return false end
  return plan.of == nil or plan.of[model] or false
end

describe('the programs of a skeleton are those that ranks make alone:', function()
  for _, plan in ipairs(matrix.plans) do
    it(plan.name, function()
      for _, model in ipairs(models.list) do
        if wanted(plan, model) and (plan.of or plan.odd or models[model].group == 'main') then
          local classes, problem = compare(setmetatable({ model = model }, { __index = plan }))
          assert(classes, problem)
        end
      end
    end)
  end

  it('random plans', function()
    for seed = 1, RANDOM do
      local classes, problem = compare(random_plans.cell(seed))
      assert(classes, problem)
    end
  end)
end)

describe('devices share a lowering', function()
  local function classes(model, plan)
    for _, known in ipairs(matrix.plans) do
      if known.name == plan then
        return compare(setmetatable({ model = model }, { __index = known }))
      end
    end
  end

  it('of a stage, whatever their part', function()
    assert.equal(1, classes('gpt untied', 'megatron 4'))
    assert.equal(1, classes('gpt dropout', 'megatron 4'))
    assert.equal(2, classes('llama', 'megatron 2 × pp 2'))
  end)

  it('of all scale units', function()
    assert.equal(1, classes('gpt tied', 'dp 4'))
    assert.equal(1, classes('gpt tied', 'fsdp 4'))
    assert.equal(1, classes('gpt untied', 'megatron 2 × dp 2'))
  end)
end)
