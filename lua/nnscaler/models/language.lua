--- What models of text share: tokens with or without targets, the limit of length, the loss.
local fail = require 'nnscaler.fail'

local M = {}

--- Makes `forward` of a model class that has `block` (longest text) and `loss`. With targets it
--- returns the mean loss over those that are not -100, and how many they are; without, nil and the
--- logits.
---@param area string of errors: 'models.gpt'
---@param logits fun(self: table, x: nnscaler.Tensor, time: integer): nnscaler.Tensor of tokens
---  [batch, time], [batch, time, vocab]
---@return fun(self: table, x: nnscaler.Tensor|{ x: nnscaler.Tensor, y?: nnscaler.Tensor },
---  y?: nnscaler.Tensor): nnscaler.Tensor|nil, { tokens: nnscaler.Tensor }|nnscaler.Tensor
function M.forward(area, logits)
  return function(self, x, y)
    if type(x) == 'table' then x, y = x.x, x.y end
    local time = x.shape[2]
    if time > self.block then
      fail('model', area, ('a text of %d tokens; expected at most block = %d'):format(time,
        self.block))
    end
    local scores = logits(self, x, time)
    if not y then return nil, scores end
    local loss, tokens = self.loss(scores, y)
    return loss, { tokens = tokens }
  end
end

return M
