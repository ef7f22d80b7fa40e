--- U-Net (Ronneberger 2015) with batch normalisation: a class for each pixel of an image.
local F = require 'nnscaler.functional'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'
local vision = require 'nnscaler.models.vision'

local Double = nn.class 'Double'

function Double:init(inputs, outputs)
  local function conv(from) return nn.Conv2d(from, outputs, 3, { padding = 1, bias = false }) end
  self.conv1 = conv(inputs)
  self.norm1 = nn.BatchNorm2d(outputs)
  self.conv2 = conv(outputs)
  self.norm2 = nn.BatchNorm2d(outputs)
end

function Double:forward(x)
  x = F.relu(self.norm1(self.conv1(x)))
  return F.relu(self.norm2(self.conv2(x)))
end

local Up = nn.class 'Up'

function Up:init(width)
  self.up = nn.ConvTranspose2d(2 * width, width, 2, { stride = 2 })
  self.conv = Double(2 * width, width)
end

function Up:forward(x, beside) return self.conv(aten.cat({ beside, self.up(x) }, 1)) end

---@class nnscaler.models.UNet : nnscaler.nn.Module
local UNet = nn.class 'UNet'
UNet.forward_arg_names = { 'x', 'y' }

---@param a { classes: integer, depth?: integer, width?: integer, channels?: integer } depth: how
---   often images are halved, 4 by default; width: channels at full size, 64 by default, twice as
---   many at each halving; channels: of the images, 3 by default
function UNet:init(a)
  local area = 'models.unet'
  a = check.options(area, a, { classes = check.none, depth = 4, width = 64, channels = 3 })
  for _, name in ipairs { 'classes', 'depth', 'width', 'channels' } do
    check.integer(area, name, a[name])
  end
  self.arguments, self.multiple = a, 2 ^ a.depth
  self.down = nn.ModuleList()
  self.up = nn.ModuleList()
  for i = 0, a.depth do
    self.down:append(Double(i == 0 and a.channels or a.width * 2 ^ (i - 1), a.width * 2 ^ i))
  end
  for i = a.depth - 1, 0, -1 do self.up:append(Up(a.width * 2 ^ i)) end
  self.head = nn.Conv2d(a.width, a.classes, 1)
  self.loss = nn.CrossEntropy()
end

UNet.forward = vision.forward(function(self, x)
  for d = 3, 4 do
    if x.shape[d] % self.multiple ~= 0 then
      fail('model', 'models.unet', ('an image of %d × %d; expected multiples of 2^depth = %d')
        :format(x.shape[3], x.shape[4], self.multiple))
    end
  end
  local seen = {}
  for i, block in ipairs(self.down) do
    x = block(i == 1 and x or F.max_pool2d(x, 2))
    seen[i] = x
  end
  for i, block in ipairs(self.up) do x = block(x, seen[#seen - i]) end
  return self.head(x):permute { 0, 2, 3, 1 }
end)

return UNet
