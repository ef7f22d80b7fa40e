--- What models of images share: the two-layer part of a transformer block, a loss around logits.
local nn = require 'nnscaler.nn'

local M = {}

--- fc2(GELU(fc1(x))).
---@class nnscaler.models.vision.MLP : nnscaler.nn.Module
M.MLP = nn.class 'MLP'

---@param width integer
---@param hidden integer
---@param init table of the weights
function M.MLP:init(width, hidden, init)
  local options = { init = init, bias_init = nn.init.zeros() }
  self.fc1 = nn.Linear(width, hidden, options)
  self.act = nn.GELU()
  self.fc2 = nn.Linear(hidden, width, options)
end

function M.MLP:forward(x) return self.fc2(self.act(self.fc1(x))) end

--- Makes `forward` of a model class that has a `loss`. With labels it returns the mean loss over
--- those that are not -100, and how many they are; without, nil and the logits.
---@param logits fun(self: table, x: nnscaler.Tensor): nnscaler.Tensor of images [batch, channels,
---  height, width], [batch, …, classes]
---@return fun(self: table, x: nnscaler.Tensor|{ x: nnscaler.Tensor, y?: nnscaler.Tensor },
---  y?: nnscaler.Tensor): nnscaler.Tensor|nil, { tokens: nnscaler.Tensor }|nnscaler.Tensor
function M.forward(logits)
  return function(self, x, y)
    if type(x) == 'table' then x, y = x.x, x.y end
    local scores = logits(self, x)
    if not y then return nil, scores end
    local loss, count = self.loss(scores, y)
    return loss, { tokens = count }
  end
end

return M
