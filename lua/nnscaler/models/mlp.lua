--- A stack of linear layers with an activation between them, and a loss: the smallest model.
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'

local losses = { cross_entropy = nn.CrossEntropy, mse = nn.MSELoss,
  bce = nn.BCEWithLogitsLoss }

---@class nnscaler.models.MLP : nnscaler.nn.Module
local MLP = nn.class 'MLP'
MLP.forward_arg_names = { 'x', 'y' }

---@param a { sizes: integer[], activation?: string, dropout?: number, bias?: boolean,
---   loss?: 'cross_entropy'|'mse'|'bce' } sizes: of the input, each hidden layer and the output;
---   activation: a name in nn, ReLU by default
function MLP:init(a)
  if type(a.sizes) ~= 'table' or #a.sizes < 2 then
    fail('usage', 'models.mlp', 'sizes needs two entries or more: input and output')
  end
  local activation = nn[a.activation or 'ReLU']
  if not activation then
    fail('usage', 'models.mlp', ("nn has no activation '%s'"):format(tostring(a.activation)))
  end
  local loss = losses[a.loss or 'cross_entropy']
  if not loss then
    fail('usage', 'models.mlp', ("loss '%s'; expected cross_entropy, mse or bce"):format(
      tostring(a.loss)))
  end
  local dropout = check.probability('models.mlp', a.dropout or 0)
  self.layers = nn.Sequential()
  for i = 2, #a.sizes do
    self.layers:append(nn.Linear(a.sizes[i - 1], a.sizes[i], { bias = a.bias ~= false }))
    if i < #a.sizes then
      self.layers:append(activation())
      if dropout > 0 then self.layers:append(nn.Dropout(dropout)) end
    end
  end
  self.loss = loss()
end

--- With targets: the loss. Without: nil and the output.
---@param x nnscaler.Tensor|{ x: nnscaler.Tensor, y?: nnscaler.Tensor }
---@param y? nnscaler.Tensor
---@return nnscaler.Tensor|nil loss, nnscaler.Tensor|nil output
function MLP:forward(x, y)
  if type(x) == 'table' then x, y = x.x, x.y end
  local output = self.layers(x)
  if not y then return nil, output end
  local loss = self.loss(output, y)
  return loss
end

return MLP
