--- Images of a disc, a square, a triangle or a cross of any colour, size and place, under noise: a
--- data set on which models of images can be seen to learn without files. A pure function of seed
--- and index.
local C = require 'nnscaler._C.data'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local check = require 'nnscaler.nn.check'

---@class nnscaler.data.Shapes
---@field classes integer of a label: 4, with labels of pixels 5
local Shapes = {}
Shapes.__index = Shapes

-- Whether a pixel is inside, by its place relative to the centre: u to the right, v down, in radii.
local inside = {
  function(u, v) return (u * u + v * v):le(1) end,
  function(u, v) return T.maximum(u:abs(), v:abs()):le(0.85) end,
  function(u, v) return (u:abs() * 2 - v):le(1):logical_and(v:le(0.9)) end,
  function(u, v)
    local a, b = u:abs(), v:abs()
    return T.minimum(a, b):le(0.3):logical_and(T.maximum(a, b):le(1))
  end,
}

---@return integer
function Shapes:len() return self.size end

---@param i integer from 0
---@return { x: nnscaler.Tensor, y: nnscaler.Tensor } x float32[3, image, image]; y int64[], the
---  shape from 0; or int64[image, image] with 0 outside of it and the shape from 1 inside
function Shapes:get(i)
  local n = self.image
  local draws = C.uniform('data:shapes', self.seed, i, 9)
  local function draw(k, low, high) return low + (high - low) * draws[k]:item() end
  local shape, radius = C.integer('data:shapes.y', self.seed, i, 4), n * draw(0, 0.2, 0.35)
  local at = T.arange(n):to 'float32'
  local u = (at - draw(1, radius, n - radius)) / radius
  local v = (at - draw(2, radius, n - radius)) / radius
  local mask = inside[shape + 1](u:unsqueeze(0), v:unsqueeze(1))
  local colours = draws:narrow(0, 3, 6):view { 2, 3, 1, 1 }
  local noise = C.uniform('data:shapes.noise', self.seed, i, 3 * n * n):view { 3, n, n }
  local x = T.where(mask, colours[0] + 0.5, colours[1] - 0.5) + (noise - 0.5) * self.noise
  local y = self.labels == 'class' and T.full({}, shape, { dtype = 'int64' })
    or mask:to 'int64' * (shape + 1)
  return { x = x, y = y }
end

--- Returns a data set.
---@param args? { size?: integer, image?: integer, labels?: 'class'|'pixels', noise?: number,
---   seed?: integer, split?: string } size: number of images, 1,000; image: pixels of a side, 32;
---   labels: of the image, or of each pixel; noise: its range, 1 (colours differ by at least 0
---   and by 2 at most); split: any name; data sets of different names differ
---@return nnscaler.data.Shapes
return function(args)
  local area = 'data.shapes'
  local a = check.options(area, args, { size = 1000, image = 32, labels = 'class', noise = 1,
    seed = 0, split = 'train' })
  check.integer(area, 'size', a.size)
  check.integer(area, 'image', a.image, 4)
  check.integer(area, 'seed', a.seed, 0)
  check.number(area, 'noise', a.noise, nil, 0)
  check.one_of(area, 'labels', a.labels, { 'class', 'pixels' })
  a.classes = a.labels == 'class' and 4 or 5
  if a.split ~= 'train' then
    a.seed = a.seed + tonumber(base.hash(tostring(a.split)):sub(1, 8), 16)
  end
  return setmetatable(a, Shapes)
end
