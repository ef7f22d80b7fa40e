--- Every plan against one device: models.lua × matrix.lua. Loss, norm before clipping, every
--- gradient, initial weights, and weights and buffers after two steps, in float64; on a tenth of
--- the cells in float32 too. The table is printed; NNSCALER_UPDATE=1 writes it into
--- docs/equivalence.md.
local calls = require 'tests.equivalence.plans.calls'
local matrix = require 'tests.equivalence.plans.matrix'
local models = require 'tests.equivalence.plans.models'
local runner = require 'tests.equivalence.plans.runner'
local table_of = require 'tests.equivalence.plans.table'

local function refusal(cell)
  local of_model = matrix.refused[cell.model]
  return of_model and of_model[cell.name]
end

-- Whether a model meets a plan.
local function wanted(plan, model)
  if plan.of then return plan.of[model] end
  return models[model].group == 'main' or plan.odd
end

-- The cells of a model by number of ranks; each is a plan with the model and the dtype.
local cells, count = {}, 0
for _, model in ipairs(models.list) do
  cells[model] = {}
  for _, plan in ipairs(matrix.plans) do
    if wanted(plan, model) then
      for _, dtype in ipairs { 'float64', 'float32' } do
        count = count + 1
        if dtype == 'float64' or (count % 20 == 0 and models[model].group == 'main') then
          local cell = setmetatable({ model = model, dtype = dtype }, { __index = plan })
          table.insert(cells[model], cell)
        end
      end
    end
  end
end

-- Runs the cells of a model: those with equally many ranks share rank threads.
local function run_model(model)
  local sessions = {}
  for _, cell in ipairs(cells[model]) do
    if not refusal(cell) then
      sessions[cell.ranks] = sessions[cell.ranks] or {}
      table.insert(sessions[cell.ranks], cell)
    end
  end
  for _, ranks in ipairs(require('nnscaler.sorted').sorted_keys(sessions)) do
    runner.run_all(sessions[ranks])
  end
end

local function check_calls(cell, result)
  if not cell.only then return end
  local allowed = {}
  for _, kind in ipairs(cell.only) do allowed[kind] = true end
  for kind, n in pairs(result.calls) do
    assert.is_true(allowed[kind] or false, ('%d unexpected %s'):format(n, kind))
  end
end

local function check(cell)
  if refusal(cell) then
    assert.error_matches(function() runner.run { cell } end, refusal(cell))
    cell.passed = true
    return
  end
  local problem = runner.problem(cell)
  assert(not problem, problem)
  if cell.dtype == 'float64' then calls.check(cell) end
  local largest = 0
  for _, result in ipairs(cell.results) do
    check_calls(cell, result)
    -- What was counted where it was copied is what the program says; buffers are sums beside it,
    -- and the program tells its own shapes only.
    local model = models[cell.model]
    if result.buffers == 0 and cell.dtype == 'float64' and model.group == 'main'
      and not model.varies then
      assert.equal(result.expected, result.sent)
    end
    largest = math.max(largest, result.own)
  end
  if cell.less and matrix.spread[cell.model] then
    assert.is_true(largest < cell.results[1].whole,
      ('a rank holds %d of %d weights'):format(largest, cell.results[1].whole))
  end
  cell.passed = true
end

for _, model in ipairs(models.list) do
  describe(model .. ',', function()
    setup(function() run_model(model) end)
    for _, cell in ipairs(cells[model]) do
      it(('%s, %s, %s'):format(model, cell.name, cell.dtype), function() check(cell) end)
    end
  end)
end

describe('the matrix,', function()
  it('as a table', function()
    print(table_of.text(models.list, matrix.plans, cells))
    if os.getenv 'NNSCALER_UPDATE' then
      table_of.write('docs/equivalence.md', models.list, matrix.plans, cells)
      calls.write(models.list, cells)
    end
    table_of.check('docs/equivalence.md', models.list, matrix.plans)
  end)
end)
