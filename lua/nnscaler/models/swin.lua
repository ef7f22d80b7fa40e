--- Swin (Liu 2021): attention within windows of an image, shifted by half a window in every second
--- block; patches are merged between stages. Names of parameters are those of timm.
local T = require 'nnscaler.tensor'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'
local vision = require 'nnscaler.models.vision'

local start = nn.init.trunc_normal(0, 0.02)
local function linear() return { init = start, bias_init = nn.init.zeros() } end

-- Windows of an image [batch, side, side, width]: [batch, windows, pixels, width].
local function cut(x, window)
  local side = x.shape[2] / window
  return x:unflatten(2, { side, window }):unflatten(1, { side, window }):transpose(2, 3)
    :flatten(3, 4):flatten(1, 2)
end

-- The image of such windows.
local function join(x, window, side)
  local count = side / window
  return x:unflatten(2, { window, window }):unflatten(1, { count, count }):transpose(2, 3)
    :flatten(3, 4):flatten(1, 2)
end

-- Row of the table of biases for each pair of pixels of a window: [pixels²].
local function pairs_index(window)
  local rows, list = 2 * window - 1, {}
  for i = 0, window ^ 2 - 1 do
    for j = 0, window ^ 2 - 1 do
      local down = math.floor(i / window) - math.floor(j / window) + window - 1
      list[#list + 1] = down * rows + i % window - j % window + window - 1
    end
  end
  return T.tensor(list, { dtype = 'int64' })
end

-- What is added to the scores in shifted windows, where pixels of opposite borders meet:
-- [windows, 1, pixels, pixels].
local function border_mask(side, window, shift)
  local at = T.arange(side)
  local region = at:ge(side - window):to 'int64' + at:ge(side - shift):to 'int64'
  local image = region:unsqueeze(1) * 3 + region
  local of = cut(image:view { 1, side, side, 1 }, window):squeeze(0):squeeze(-1)
  local other = of:unsqueeze(1):ne(of:unsqueeze(2)):to 'float32'
  return (other * -100):unsqueeze(1)
end

local Attention = nn.class 'Attention'

function Attention:init(width, heads, window)
  self.heads, self.window = heads, window
  self.relative_position_bias_table = nn.Parameter { shape = { (2 * window - 1) ^ 2, heads },
    init = start }
  self:register_buffer('relative_position_index', function() return pairs_index(window) end,
    { persistent = false, shape = { window ^ 4 }, dtype = 'int64' })
  self.qkv = nn.FusedLinear(width, width, 3, linear())
  self.proj = nn.Linear(width, width, linear())
end

function Attention:forward(x, mask)
  local parts, pixels = { self.qkv(x) }, self.window ^ 2
  for i, part in ipairs(parts) do -- [batch, windows, heads, pixels, size of a head]
    parts[i] = part:unflatten(-1, { self.heads, -1 }):transpose(2, 3)
  end
  local q, k, v = unpack(parts)
  local bias = self.relative_position_bias_table:index_select(0, self.relative_position_index)
  local scores = (q / math.sqrt(q.shape[5])):matmul(k:transpose(-2, -1))
    + bias:t():unflatten(1, { pixels, pixels })
  if mask then scores = scores + mask end
  return self.proj(scores:softmax(-1):matmul(v):transpose(2, 3):flatten(-2))
end

local Block = nn.class 'Block'

-- An image that is one window is not shifted.
function Block:init(width, heads, window, side, shifted)
  self.window, self.side = math.min(window, side), side
  self.shift = shifted and side > window and math.floor(window / 2) or 0
  self.norm1 = nn.LayerNorm(width)
  self.attn = Attention(width, heads, self.window)
  self.norm2 = nn.LayerNorm(width)
  self.mlp = vision.MLP(width, 4 * width, start)
  if self.shift > 0 then
    self:register_buffer('attn_mask', function() return border_mask(side, window, self.shift) end,
      { persistent = false, shape = { (side / window) ^ 2, 1, window ^ 2, window ^ 2 } })
  end
end

function Block:forward(x) -- [batch, side, side, width]
  local y, back = self.norm1(x), self.shift
  if back > 0 then y = y:roll({ -back, -back }, { 1, 2 }) end
  y = join(self.attn(cut(y, self.window), self.attn_mask), self.window, self.side)
  if back > 0 then y = y:roll({ back, back }, { 1, 2 }) end
  x = x + y
  return x + self.mlp(self.norm2(x))
end

local Merge = nn.class 'Merge'

function Merge:init(width)
  self.norm = nn.LayerNorm(2 * width)
  self.reduction = nn.Linear(2 * width, width, { bias = false, init = start })
end

function Merge:forward(x) -- 2 × 2 neighbours side by side, column by column
  local half = x.shape[2] / 2
  x = x:unflatten(2, { half, 2 }):unflatten(1, { half, 2 }):permute { 0, 1, 3, 4, 2, 5 }
  return self.reduction(self.norm(x:flatten(3)))
end

local Stage = nn.class 'Stage'

function Stage:init(width, a, number, side)
  if number > 1 then self.downsample = Merge(width) end
  self.blocks = nn.Sequential()
  for i = 1, a.layers[number] do
    self.blocks:append(Block(width, a.heads[number], a.window, side, i % 2 == 0))
  end
end

function Stage:forward(x) return self.blocks(self.downsample and self.downsample(x) or x) end

---@class nnscaler.models.Swin : nnscaler.nn.Module
local Swin = nn.class 'Swin'
Swin.forward_arg_names = { 'x', 'y' }

--- Sizes by name; `classes` and `image` come from the data.
Swin.configs = {
  tiny = { patch = 4, window = 7, width = 96, layers = { 2, 2, 6, 2 }, heads = { 3, 6, 12, 24 } },
  small = { patch = 4, window = 7, width = 96, layers = { 2, 2, 18, 2 }, heads = { 3, 6, 12, 24 } },
  base = { patch = 4, window = 7, width = 128, layers = { 2, 2, 18, 2 }, heads = { 4, 8, 16, 32 } },
}

---@param a { classes: integer, image: integer, patch: integer, window: integer, width: integer,
---   layers: integer[], heads: integer[], channels?: integer } image, patch, window: pixels, pixels
---   and patches of a side; width: of the first stage, twice as much in each further one; layers,
---   heads: of each stage; channels: of the images, 3 by default
function Swin:init(a)
  local area = 'models.swin'
  a = check.options(area, a, { classes = check.none, image = check.none, patch = check.none,
    window = check.none, width = check.none, layers = check.none, heads = check.none,
    channels = 3 })
  for _, name in ipairs { 'classes', 'image', 'patch', 'window', 'width', 'channels' } do
    check.integer(area, name, a[name])
  end
  a.layers = check.sizes(area, 'layers', a.layers)
  a.heads = check.each(area, 'heads', a.heads, #a.layers)
  self.arguments = a
  local side, width = a.image / a.patch, a.width
  self.patch_embed = nn.ModuleDict()
  self.patch_embed.proj = nn.Conv2d(a.channels, width, a.patch, { stride = a.patch })
  self.patch_embed.norm = nn.LayerNorm(width)
  self.layers = nn.ModuleList()
  for number in ipairs(a.layers) do
    if number > 1 then side, width = side / 2, 2 * width end
    if side % 1 ~= 0 or side % math.min(a.window, side) ~= 0 then
      fail('usage', area, ('windows of %d do not divide the %g patches of a side of stage %d')
        :format(a.window, side, number))
    end
    if width % a.heads[number] ~= 0 then
      fail('usage', area, ('%d heads do not divide width %d of stage %d'):format(a.heads[number],
        width, number))
    end
    self.layers:append(Stage(width, a, number, side))
  end
  self.norm = nn.LayerNorm(width)
  self.head = nn.ModuleDict()
  self.head.fc = nn.Linear(width, a.classes, linear())
  self.loss = nn.CrossEntropy()
end

Swin.forward = vision.forward(function(self, x)
  x = self.patch_embed.norm(self.patch_embed.proj(x):permute { 0, 2, 3, 1 })
  for _, stage in ipairs(self.layers) do x = stage(x) end
  return self.head.fc(self.norm(x):mean { 1, 2 })
end)

return Swin
