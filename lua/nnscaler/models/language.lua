--- What models of text share: tokens with or without targets, the limit of length, the loss.
local F = require 'nnscaler.functional'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'

local M = {}

--- Checks the argument `loss_chunk` of a model: nil, or how many rows of scores exist at a time.
---@param area string
---@param chunk any
---@return integer|nil
function M.loss_chunk(area, chunk)
  return chunk and check.integer(area, 'loss_chunk', chunk)
end

--- Makes `forward` of a model class that has `block` (longest text), `lm_head`, `loss` and perhaps
--- `loss_chunk`: then the loss is made in chunks of that many tokens, and no logits but those of a
--- chunk exist. With targets it returns the mean loss over those that are not -100, and how many
--- they are; without, nil and the logits.
---@param area string of errors: 'models.gpt'
---@param hidden fun(self: table, x: nnscaler.Tensor, time: integer): nnscaler.Tensor of tokens
---  [batch, time], what the output layer reads: [batch, time, width]
---@return fun(self: table, x: nnscaler.Tensor|{ x: nnscaler.Tensor, y?: nnscaler.Tensor },
---  y?: nnscaler.Tensor): nnscaler.Tensor|nil, { tokens: nnscaler.Tensor }|nnscaler.Tensor
function M.forward(area, hidden)
  return function(self, x, y)
    if type(x) == 'table' then x, y = x.x, x.y end
    local time = x.shape[2]
    if time > self.block then
      fail('model', area, ('a text of %d tokens; expected at most block = %d'):format(time,
        self.block))
    end
    local last = hidden(self, x, time)
    if not y then return nil, self.lm_head(last) end
    local loss, tokens
    if self.loss_chunk then
      tokens = y:ne(self.loss.ignore_index):sum()
      loss = F.linear_cross_entropy(last, self.lm_head.weight, y, { reduction = 'sum',
        ignore_index = self.loss.ignore_index, chunk = self.loss_chunk }) / tokens:clamp_min(1)
    else
      loss, tokens = self.loss(self.lm_head(last), y)
    end
    return loss, { tokens = tokens }
  end
end

return M
