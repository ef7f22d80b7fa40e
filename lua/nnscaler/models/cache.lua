--- Keys and values of the tokens that a model of text has read, so that only those of new tokens
--- are computed. A cache belongs to one text, or to a batch of texts of one length.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'

local kFirstRoom = 64 -- tokens; doubled whenever more come

---@class nnscaler.models.Cache
---@field length integer tokens read so far
---@field capacity integer tokens that it can hold
local Cache = {}
Cache.__index = Cache

-- What one attention layer keeps: keys and values [batch, heads, room, width].
---@class nnscaler.models.CacheLayer
---@field private cache nnscaler.models.Cache
local Layer = {}
Layer.__index = Layer

-- A tensor for `room` tokens, with those of `old`.
local function grown(old, like, room, length)
  local shape = like.shape
  shape[3] = room
  local new = T.empty(shape, { dtype = like.dtype, device = like.device })
  if old then new:narrow(2, 0, length):copy_(old:narrow(2, 0, length)) end
  return new
end

--- Position of the first new token.
---@return integer
function Layer:first() return self.cache.length end

-- Keeps keys and values of new tokens; returns those of all.
function Layer:append(k, v)
  local first, time = self.cache.length, k.shape[3]
  local total, room = first + time, self.k and self.k.shape[3] or 0
  if room < total then
    room = math.max(room, kFirstRoom)
    while room < total do room = 2 * room end
    room = math.min(room, self.cache.capacity)
    self.k, self.v = grown(self.k, k, room, first), grown(self.v, v, room, first)
  end
  self.k:narrow(2, first, time):copy_(k)
  self.v:narrow(2, first, time):copy_(v)
  return self.k:narrow(2, 0, total), self.v:narrow(2, 0, total)
end

--- Causal attention of new tokens to all before them and to themselves; keeps their keys and
--- values.
---@param q nnscaler.Tensor [batch, heads, time, width]
---@param k nnscaler.Tensor [batch, key heads, time, width]; the key heads divide the heads
---@param v nnscaler.Tensor [batch, key heads, time, width]
---@return nnscaler.Tensor # [batch, heads, time, width]
function Layer:attend(q, k, v)
  local first, time = self.cache.length, k.shape[3]
  local options = { is_causal = first == 0, enable_gqa = q.shape[2] ~= k.shape[2] }
  if first > 0 and time > 1 then
    local queries = T.arange(first, first + time):unsqueeze(1)
    options.attn_mask = T.arange(first + time):le(queries):to(q.device)
  end
  k, v = self:append(k, v)
  return aten.scaled_dot_product_attention(q, k, v, options)
end

--- The place of an attention layer.
---@param index integer from 1
---@return nnscaler.models.CacheLayer
function Cache:layer(index)
  self.layers[index] = self.layers[index] or setmetatable({ cache = self }, Layer)
  return self.layers[index]
end

--- Refuses more tokens than there is room for.
---@param time integer new tokens
function Cache:check(time)
  if self.length + time > self.capacity then
    fail('model', 'models.cache', ('%d tokens behind %d; expected at most %d in all'):format(time,
      self.length, self.capacity), 'start a new cache with the whole text')
  end
end

--- Says that all layers have read new tokens.
---@param time integer how many
function Cache:advance(time) self.length = self.length + time end

local M = {}

--- Makes an empty cache.
---@param capacity integer tokens that it can hold
---@return nnscaler.models.Cache
function M.new(capacity)
  return setmetatable({ length = 0, capacity = capacity, layers = {} }, Cache)
end

return M
