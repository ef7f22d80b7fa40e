--- A data set of random samples for trying things out: x uniform in [0, 1), y a random class; a
--- pure function of seed and index.
local C = require 'nnscaler._C.data'
local base = require 'nnscaler._C.base'
local check = require 'nnscaler.nn.check'
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
  local a = check.options('data.random_samples', args,
    { size = 100, width = 100, classes = 10, seed = 0, split = 'train' })
  for _, name in ipairs { 'size', 'width', 'classes' } do
    check.integer('data.random_samples', name, a[name])
  end
  check.integer('data.random_samples', 'seed', a.seed, 0)
  if a.split ~= 'train' then
    a.seed = a.seed + tonumber(base.hash(tostring(a.split)):sub(1, 8), 16)
  end
  return setmetatable(a, RandomSamples)
end
