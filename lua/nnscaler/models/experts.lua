--- What models with experts share: the layer by its settings, and what it adds to the loss.
local check = require 'nnscaler.nn.check'
local nn = require 'nnscaler.nn'

local M = {}

---@class nnscaler.models.Experts
---@field count integer experts
---@field chosen? integer experts of a token, 2
---@field normalize? boolean weights of a token add up to 1 (default)
---@field scale? number the weights are multiplied by it, 1
---@field capacity? number how much of its even share an expert takes; by default all that choose it
---@field balance? number weight of the balance of experts in the loss, 0.01
---@field z? number weight of the z-loss in the loss, 0

local Routed = nn.class('Routed', nn.Experts)

function Routed:forward(x, mask)
  local y, routing = nn.Experts.forward(self, x, mask)
  if not self.training then return y end
  local addend
  if self.weights.balance > 0 then addend = self:balance(routing) * self.weights.balance end
  if self.weights.z > 0 then
    local z = self:z_loss(routing) * self.weights.z
    addend = addend and addend + z or z
  end
  return y, addend
end

--- Makes a layer of experts that returns, beside its result, its addend of the loss in training, or
--- nil.
---@param width integer
---@param inner integer inner width of an expert
---@param a nnscaler.models.Experts
---@param init table how weights begin
---@return nnscaler.nn.Module
function M.layer(width, inner, a, init)
  local area = 'models.experts'
  a = check.options(area, a, { count = check.none, chosen = 2, normalize = true, scale = 1,
    capacity = check.none, balance = 0.01, z = 0 })
  local layer = Routed(width, inner, check.integer(area, 'count', a.count), { chosen = a.chosen,
    normalize = a.normalize, scale = a.scale, capacity = a.capacity, init = init })
  layer.weights = { balance = check.number(area, 'balance', a.balance, nil, 0),
    z = check.number(area, 'z', a.z, nil, 0) }
  return layer
end

--- The mean of what layers add to the loss; nil where none adds anything.
---@param list nnscaler.Tensor[]
---@return nnscaler.Tensor|nil
function M.mean(list)
  local sum
  for _, one in ipairs(list) do sum = sum and sum + one or one end
  return sum and sum / #list
end

return M
