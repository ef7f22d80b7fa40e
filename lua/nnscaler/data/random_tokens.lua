--- A data set of random tokens, for planning and timing models without a text: x and y are int64
--- [block], y is x one token on; a pure function of seed and index.
local C = require 'nnscaler._C.data'
local check = require 'nnscaler.nn.check'

---@class nnscaler.data.RandomTokens
local RandomTokens = {}
RandomTokens.__index = RandomTokens

---@return integer
function RandomTokens:len() return self.size end

---@param i integer from 0
---@return { x: nnscaler.Tensor, y: nnscaler.Tensor }
function RandomTokens:get(i)
  local draws = C.uniform('data:random_tokens', self.seed, i, self.block + 1)
  local tokens = (draws * self.vocab):floor():clamp_max(self.vocab - 1):to 'int64'
  return { x = tokens:narrow(0, 0, self.block), y = tokens:narrow(0, 1, self.block) }
end

--- Returns a data set.
---@param options { vocab: integer, block: integer, size?: integer, seed?: integer } size: of the
---   data set, in texts; 1,000 by default
---@return nnscaler.data.RandomTokens
return function(options)
  local o = check.options('data.random_tokens', options,
    { vocab = check.none, block = check.none, size = 1000, seed = 0 })
  for _, name in ipairs { 'vocab', 'block', 'size' } do
    check.integer('data.random_tokens', name, o[name])
  end
  check.integer('data.random_tokens', 'seed', o.seed, 0)
  return setmetatable(o, RandomTokens)
end
