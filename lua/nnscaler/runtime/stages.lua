--- The pipeline of a plan as one rank runs it: its stages, and the order of their forward (F),
--- backward (B) and weight-gradient (W) parts.
local M = {}

---@class nnscaler.Stages
---@field count integer stages of the plan
---@field parts { stage: integer, lane: integer, first: boolean }[] stages of this rank
---@field lanes integer 2 where odd micro-batches go the other way
local Stages = {}
Stages.__index = Stages

--- Returns the pipeline of a plan for a device.
---@param plan userdata nnscaler.Plan
---@param device integer
---@return nnscaler.Stages
function M.new(plan, device)
  local info = plan:info()
  return setmetatable({ plan = plan, device = device, parts = plan:parts(device),
    count = #info.stages, lanes = info.lanes, orders = {} }, Stages)
end

--- What this rank runs for so many micro-batches, in order.
---@param micro_batches integer
---@param training boolean
---@return { kind: string, stage: integer, micro: integer }[]
function Stages:order(micro_batches, training)
  local key = (training and 'training ' or 'evaluation ') .. micro_batches
  local order = self.orders[key]
  if not order then
    order = self.plan:order(self.device, micro_batches, training)
    self.orders[key] = order
  end
  return order
end

--- Whether this rank is the one of its unit that tells the loss of some micro-batches.
---@param last_stage integer
---@return boolean
function Stages:tells(last_stage)
  for _, part in ipairs(self.parts) do
    if part.stage == last_stage and part.first then return true end
  end
  return false
end

return M
