--- What models of text share: tokens with or without targets, the limit of length, the loss, and
--- the cache of a text that goes on.
local caches = require 'nnscaler.models.cache'
local fail = require 'nnscaler.fail'

local M = {}

--- Makes `forward` of a model class that has `block` (longest text) and `loss`. With targets it
--- returns the mean loss over those that are not -100, and how many they are; without, nil and the
--- logits. With a cache (`new_cache`) the tokens go on from those that it has.
---@param area string of errors: 'models.gpt'
---@param logits fun(self: table, x: nnscaler.Tensor, time: integer, cache?:
---  nnscaler.models.Cache): nnscaler.Tensor of tokens [batch, time], [batch, time, vocab]
---@return fun(self: table, x: nnscaler.Tensor|{ x: nnscaler.Tensor, y?: nnscaler.Tensor,
---  cache?: nnscaler.models.Cache }, y?: nnscaler.Tensor): nnscaler.Tensor|nil,
---  { tokens: nnscaler.Tensor }|nnscaler.Tensor
function M.forward(area, logits)
  return function(self, x, y)
    local cache
    if type(x) == 'table' then x, y, cache = x.x, x.y, x.cache end
    local time = x.shape[2]
    if time > self.block then
      fail('model', area, ('a text of %d tokens; expected at most block = %d'):format(time,
        self.block))
    end
    if cache then cache:check(time) end
    local scores = logits(self, x, time, cache)
    if cache then cache:advance(time) end
    if not y then return nil, scores end
    local loss, tokens = self.loss(scores, y)
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
