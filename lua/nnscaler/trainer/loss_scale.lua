--- The factor by which the loss is multiplied before backward of a float16 run, so that small
--- gradients stay above what float16 can hold. It halves with a step whose gradients are not
--- finite, which changes no weight, and doubles after `kPatience` good steps in a row. The norm
--- that decides is that of all ranks, so all decide alike.
local M = {}

local kFirst, kPatience = 2 ^ 16, 2000

---@class nnscaler.LossScale
---@field factor number
---@field good integer steps since it changed
local LossScale = {}
LossScale.__index = LossScale

--- Makes the scale of a run.
---@param saved? { factor: number, good: integer } of a checkpoint
---@return nnscaler.LossScale
function M.new(saved)
  saved = saved or { factor = kFirst, good = 0 }
  return setmetatable({ factor = saved.factor, good = saved.good }, LossScale)
end

--- Takes the outcome of a step.
---@param finite boolean whether its gradients were
---@return boolean whether a smaller factor may help, where they were not
function LossScale:step(finite)
  if finite then
    self.good = self.good + 1
    if self.good == kPatience then self.factor, self.good = self.factor * 2, 0 end
    return true
  end
  self.good = 0
  if self.factor <= 1 then return false end
  self.factor = self.factor / 2
  return true
end

--- For a checkpoint.
---@return { factor: number, good: integer }
function LossScale:state() return { factor = self.factor, good = self.good } end

return M
