--- A data set of random samples for trying things out: x uniform in [0, 1), y a random class; a
--- pure
--- function of seed and index.
local C = require 'nnscaler._C.data'
local T = require 'nnscaler.tensor'

---@class nnscaler.data.RandomSamples
local RandomSamples = {}
RandomSamples.__index = RandomSamples

---@return integer
function RandomSamples:len() return self.size end

---@param i integer from 0
---@return { x: nnscaler.Tensor, y: nnscaler.Tensor } x float32[width], y int64[]
function RandomSamples:get(i)
  local class = C.integer('data:random_samples.y', self.seed, i, self.classes)
  return {
    x = C.uniform('data:random_samples.x', self.seed, i, self.width),
    y = T.full({}, class, { dtype = 'int64' }),
  }
end

--- Returns a data set.
---@param args? table size, width, classes, seed (integers); split: any name; data sets of
---  different names differ
---@return nnscaler.data.RandomSamples
return function(args)
  local a = args or {}
  local seed = a.seed or 0
  if a.split and a.split ~= 'train' then
    seed = seed + tonumber(require('nnscaler._C.base').hash(a.split):sub(1, 8), 16)
  end
  return setmetatable({
    size = a.size or 100, width = a.width or 100, classes = a.classes or 10, seed = seed,
  }, RandomSamples)
end
