--- What models of text share: tokens with or without targets, the limit of length, the loss, and
--- the cache of a text that goes on.
local F = require 'nnscaler.functional'
local caches = require 'nnscaler.models.cache'
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
--- they are; without, nil and the logits. With a cache (`new_cache`) the tokens go on from those
--- that it has.
---@param area string of errors: 'models.gpt'
---@param hidden fun(self: table, x: nnscaler.Tensor, time: integer, cache?:
---  nnscaler.models.Cache): nnscaler.Tensor, nnscaler.Tensor|nil of tokens [batch, time], what the
---  output layer reads, [batch, time, width], and what is added to the loss in training
---@return fun(self: table, x: nnscaler.Tensor|{ x: nnscaler.Tensor, y?: nnscaler.Tensor,
---  cache?: nnscaler.models.Cache }, y?: nnscaler.Tensor): nnscaler.Tensor|nil,
---  { tokens: nnscaler.Tensor }|nnscaler.Tensor
function M.forward(area, hidden)
  return function(self, x, y)
    local cache
    if type(x) == 'table' then x, y, cache = x.x, x.y, x.cache end
    local time = x.shape[2]
    if time > self.block then
      fail('model', area, ('a text of %d tokens; expected at most block = %d'):format(time,
        self.block))
    end
    if cache then cache:check(time) end
    local last, addend = hidden(self, x, time, cache)
    if cache then cache:advance(time) end
    if not y then return nil, self.lm_head(last) end
    local loss, tokens
    if self.loss_chunk then
      tokens = y:ne(self.loss.ignore_index):sum()
      loss = F.linear_cross_entropy(last, self.lm_head.weight, y, { reduction = 'sum',
        ignore_index = self.loss.ignore_index, chunk = self.loss_chunk }) / tokens:clamp_min(1)
    else
      loss, tokens = self.loss(self.lm_head(last), y)
    end
    if addend then loss = loss + addend end
    return loss, { tokens = tokens }
  end
end

--- Makes an empty cache for a text that may grow to `length` tokens and as far beyond as the same
--- keys serve; nothing where the model reads no text of that length.
---@param self table a model with `block` and perhaps `short_block`: the longest text whose
---  positions are those of short ones
---@param length integer
---@return nnscaler.models.Cache|nil
function M.new_cache(self, length)
  for _, capacity in ipairs { self.short_block or self.block, self.block } do
    if length <= capacity then return caches.new(capacity) end
  end
end

return M
