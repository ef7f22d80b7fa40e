--- ViT (Dosovitskiy 2020): a transformer over the patches of an image. Names of parameters are
--- those of timm.
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'
local vision = require 'nnscaler.models.vision'

local start = nn.init.trunc_normal(0, 0.02)
local function linear() return { init = start, bias_init = nn.init.zeros() } end

local Attention = nn.class 'Attention'

function Attention:init(a)
  self.heads, self.head_dim = a.heads, a.width / a.heads
  self.qkv = nn.FusedLinear(a.width, a.width, 3, linear())
  self.proj = nn.Linear(a.width, a.width, linear())
end

function Attention:forward(x)
  local parts = { self.qkv(x) }
  for i, part in ipairs(parts) do
    parts[i] = part:unflatten(-1, { self.heads, self.head_dim }):transpose(1, 2)
  end
  local y = aten.scaled_dot_product_attention(unpack(parts))
  return self.proj(y:transpose(1, 2):flatten(-2))
end

local Block = nn.class 'Block'

function Block:init(a)
  self.norm1 = nn.LayerNorm(a.width, { eps = 1e-6 })
  self.attn = Attention(a)
  self.norm2 = nn.LayerNorm(a.width, { eps = 1e-6 })
  self.mlp = vision.MLP(a.width, a.hidden, start)
end

function Block:forward(x)
  x = x + self.attn(self.norm1(x))
  return x + self.mlp(self.norm2(x))
end

---@class nnscaler.models.ViT : nnscaler.nn.Module
local ViT = nn.class 'ViT'
ViT.forward_arg_names = { 'x', 'y' }

--- Sizes by name; `classes` and `image` come from the data.
ViT.configs = {
  tiny = { patch = 16, layers = 12, heads = 3, width = 192 },
  small = { patch = 16, layers = 12, heads = 6, width = 384 },
  base = { patch = 16, layers = 12, heads = 12, width = 768 },
  large = { patch = 16, layers = 24, heads = 16, width = 1024 },
}

---@param a { classes: integer, image: integer, patch: integer, layers: integer, heads: integer,
---   width: integer, hidden?: integer, channels?: integer } image: pixels of a side; patch: of a
---   patch; hidden: inner width of the feed-forward part, 4 · width by default; channels: of the
---   images, 3 by default
function ViT:init(a)
  local area = 'models.vit'
  a = check.options(area, a, { classes = check.none, image = check.none, patch = check.none,
    layers = check.none, heads = check.none, width = check.none, hidden = check.none,
    channels = 3 })
  for _, name in ipairs { 'classes', 'image', 'patch', 'layers', 'heads', 'width', 'channels' } do
    check.integer(area, name, a[name])
  end
  a.hidden = check.integer(area, 'hidden', a.hidden or 4 * a.width)
  if a.width % a.heads ~= 0 then
    fail('usage', area, ('%d heads do not divide width %d'):format(a.heads, a.width))
  end
  if a.image % a.patch ~= 0 then
    fail('usage', area, ('patches of %d pixels do not divide images of %d'):format(a.patch,
      a.image))
  end
  self.arguments = a
  local tokens = (a.image / a.patch) ^ 2 + 1
  self.cls_token = nn.Parameter { shape = { 1, 1, a.width }, init = nn.init.normal(0, 1e-6) }
  self.pos_embed = nn.Parameter { shape = { 1, tokens, a.width }, init = start }
  self.patch_embed = nn.ModuleDict()
  self.patch_embed.proj = nn.Conv2d(a.channels, a.width, a.patch, { stride = a.patch })
  self.blocks = nn.ModuleList()
  for _ = 1, a.layers do self.blocks:append(Block(a)) end
  self.norm = nn.LayerNorm(a.width, { eps = 1e-6 })
  self.head = nn.Linear(a.width, a.classes, linear())
  self.loss = nn.CrossEntropy()
end

ViT.forward = vision.forward(function(self, x)
  local patches = self.patch_embed.proj(x):flatten(2):transpose(1, 2)
  local first = self.cls_token:expand { x.shape[1], -1, -1 }
  local hidden = aten.cat({ first, patches }, 1) + self.pos_embed
  for _, block in ipairs(self.blocks) do hidden = block(hidden) end
  return self.head(self.norm(hidden):select(1, 0))
end)

return ViT
