--- Plans of models that stand outside of the list of the plan matrix: each model under each plan
--- equals one device.
local on_ranks = require 'tests.equivalence.support.on_ranks'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local M = {}

---@class tests.HiddenPlan
---@field of string[] models
---@field policy string
---@field ranks integer
---@field plan? integer plan_ngpus, by default all ranks
---@field config? table pas_config
---@field cuts? integer fewest operators that the plan has to cut

--- What a plan is called.
---@param plan tests.HiddenPlan
---@return string
function M.name(plan)
  local units, words = plan.ranks / (plan.plan or plan.ranks), { plan.policy:match '[^.]+$' }
  words[2] = plan.ranks .. (units > 1 and (' in %d units'):format(units) or '')
  for key, value in sorted_pairs(plan.config or {}) do
    words[#words + 1] = ('%s=%s'):format(key, tostring(value))
  end
  return table.concat(words, ' ') .. ','
end

--- Runs all models of a plan.
---@param module string that adds the models
---@param plan tests.HiddenPlan
---@return table[][] results by rank and model
function M.run(module, plan)
  local cells = {}
  for i, model in ipairs(plan.of) do
    cells[i] = { model = model, policy = plan.policy, plan = plan.plan or plan.ranks,
      ranks = plan.ranks, micro = 2, config = plan.config }
  end
  return on_ranks(plan.ranks, 'tests.equivalence.plans.hidden_rank',
    { module = module, cells = cells })
end

--- What is wrong with model number `i`, rank by rank; '' where nothing is.
---@param plan tests.HiddenPlan
---@param found table[][] of `run`
---@param i integer
---@return string
function M.problems(plan, found, i)
  local lines = {}
  for rank, results in ipairs(found) do
    local result = results[i]
    local text = result.error or table.concat(result.bad, '\n')
    if text == '' and result.cuts < (plan.cuts or 0) then
      text = ('%d operators are cut; expected %d'):format(result.cuts, plan.cuts)
    end
    if text ~= '' then lines[#lines + 1] = ('rank %d: %s'):format(rank - 1, text) end
  end
  return table.concat(lines, '\n')
end

return M
