--- Losses of a run for its curve, kept small: when there are too many points, neighbours are
--- merged. It is part of the checkpoint, so that the curve of a resumed run is whole.
local M = {}

local kPoints = 1000

---@class nnscaler.trainer.History
---@field train { step: integer[], loss: number[] }
---@field val { step: integer[], loss: number[] }
---@field stride integer steps that one training point stands for
local History = {}
History.__index = History

---@param saved? table what `state` returned
---@return nnscaler.trainer.History
function M.new(saved)
  saved = saved or {}
  return setmetatable({
    train = saved.train or { step = {}, loss = {} }, val = saved.val or { step = {}, loss = {} },
    stride = saved.stride or 1, sum = saved.sum or 0, seen = saved.seen or 0,
  }, History)
end

local function halve(series)
  local step, loss = {}, {}
  for i = 2, #series.step, 2 do
    step[#step + 1] = series.step[i]
    loss[#loss + 1] = (series.loss[i - 1] + series.loss[i]) / 2
  end
  return { step = step, loss = loss }
end

---@param step integer
---@param loss number
function History:add_train(step, loss)
  if loss ~= loss or math.abs(loss) == math.huge then return end
  self.sum, self.seen = self.sum + loss, self.seen + 1
  if self.seen < self.stride then return end
  local n = #self.train.step + 1
  self.train.step[n], self.train.loss[n] = step, self.sum / self.seen
  self.sum, self.seen = 0, 0
  if n >= kPoints then self.train, self.stride = halve(self.train), self.stride * 2 end
end

---@param step integer
---@param loss number
function History:add_val(step, loss)
  if loss ~= loss or math.abs(loss) == math.huge then return end
  local n = #self.val.step + 1
  self.val.step[n], self.val.loss[n] = step, loss
  if n >= kPoints then self.val = halve(self.val) end
end

---@return table plain data for a checkpoint
function History:state()
  return { train = self.train, val = self.val, stride = self.stride, sum = self.sum,
    seen = self.seen }
end

return M
