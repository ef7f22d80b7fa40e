--- The pipeline of a plan as one rank runs it: its stage, and the order of forward and backward.
local core = require 'nnscaler._C.plan'

local M = {}

---@class nnscaler.Stages
local Stages = {}
Stages.__index = Stages

--- Returns the pipeline of a plan for the rank of a stage.
---@param info { stages: integer[][], schedule: string, chunks: integer }
---@param stage integer
---@return nnscaler.Stages
function M.new(info, stage)
  return setmetatable({ count = #info.stages, schedule = info.schedule, chunks = info.chunks,
    stage = stage, orders = {} }, Stages)
end

--- What this rank runs for so many micro-batches, in order.
---@param micro_batches integer
---@return { kind: string, micro: integer }[]
function Stages:order(micro_batches)
  local order = self.orders[micro_batches]
  if not order then
    order = core.time_line(self.schedule, self.count, micro_batches, self.chunks)[self.stage + 1]
    self.orders[micro_batches] = order
  end
  return order
end

return M
