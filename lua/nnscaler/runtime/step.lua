--- The step of an optimizer: runs what the first training program says of it, part by part, over
--- the states of one model or of several parallel modules and what lies outside of them.
local M = {}

---@class nnscaler.StepPart
---@field program table functions of a generated step: sum, scale, squares, clip, update, and gather
---  where it gathers weights
---@field states nnscaler.States

---@class nnscaler.Step
local Step = {}
Step.__index = Step

--- Makes the step of an optimizer.
---@param parts fun(): nnscaler.StepPart[] asked when they are there
---@param sharing? nnscaler.Sharing of several ranks
---@param summed? fun() called after sums
---@return nnscaler.Step
function M.new(parts, sharing, summed)
  return setmetatable({ parts = parts, sharing = sharing, summed = summed }, Step)
end

--- Sums gradients over the ranks, as far as they are not summed yet.
function Step:sum()
  for _, part in ipairs(self.parts()) do part.program.sum(part.states) end
  for _, part in ipairs(self.parts()) do part.states:wait() end
  if self.summed then self.summed() end
end

--- Multiplies gradients by a factor.
---@param factor number
function Step:scale(factor)
  for _, part in ipairs(self.parts()) do part.program.scale(part.states, factor) end
end

--- 2-norm of all gradients, over all ranks.
---@return number
function Step:norm()
  local total = 0
  for _, part in ipairs(self.parts()) do total = total + part.program.squares(part.states) end
  return math.sqrt(self.sharing and self.sharing:over_all({ total })[1] or total)
end

--- Clips gradients to a norm.
---@param norm number what `norm` returned
---@param maximum number the largest norm allowed; 0: no clipping
function Step:clip(norm, maximum)
  for _, part in ipairs(self.parts()) do part.program.clip(part.states, norm, maximum) end
end

--- Updates the weights, and makes those whole again that ranks update in shards.
---@param lr number learning rate of the default group; groups with their own keep their ratio to it
function Step:update(lr)
  for _, part in ipairs(self.parts()) do part.program.update(part.states, lr) end
  for _, part in ipairs(self.parts()) do
    if part.program.gather then part.program.gather(part.states) end
  end
end

return M
