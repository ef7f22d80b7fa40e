--- Graphs after the first one under a plan: evaluation, other shapes, other operators. Their
--- programs use weights where the first graph has put them, and are checked before they run.
local core = require 'nnscaler._C.plan'
local log = require('nnscaler.log').logger 'nnscaler.program'
local rank_zero = require 'nnscaler.runtime.rank_zero'

local M = {}

-- What the policy says of a graph, in the stages and on the devices of the plan; '' where it says
-- nothing that fits them.
local function ask_policy(plan, make)
  local ok, made = pcall(make)
  local why = not ok and (type(made) == 'table' and made.message or tostring(made))
  local fitting = ok and plan:with_operators(made)
  if fitting then return fitting:json() end
  log.info('the policy has no plan for another graph of the model (%s): operators that the plan '
    .. 'does not know run with what makes their operands', why or 'its stages lie elsewhere')
  return ''
end

--- The plan for another graph of the model: the same where it knows the operators, else what its
--- policy says of this graph. A collective of the unit.
---@param shared nnscaler.Sharing
---@param graph userdata
---@param make fun(beat: fun()): userdata runs the policy
---@return userdata plan
function M.plan(shared, graph, make)
  local plan = shared.plan
  if not graph:training() or plan:knows(graph) then return plan end
  local text = rank_zero.run(shared.together, shared.rank, function(beat)
    return ask_policy(plan, function() return make(beat) end)
  end, shared.beat_s)
  return text == '' and plan or core.from_json(text)
end

--- Checks the programs of a graph on all ranks against each other: the first rank of each scale
--- unit does, the others wait for it. A collective of the unit. Programs of written files were
--- checked when they were written.
---@param shared nnscaler.Sharing
---@param graph userdata
---@param plan userdata of the graph
---@param line nnscaler.Pipeline
---@param found nnscaler.Generated|nil this rank's program of written files
function M.check(shared, graph, plan, line, found)
  if shared.plan_ngpus == 1 then return end
  rank_zero.run(shared.together, shared.rank, function()
    if not found then line:check(graph, plan) end
    return ''
  end, shared.beat_s)
end

return M
