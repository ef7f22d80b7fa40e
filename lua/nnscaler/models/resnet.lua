--- ResNet (He 2015) of 18 to 152 layers; `width` makes all of its layers wider. Names of parameters
--- are those of torchvision and timm.
local F = require 'nnscaler.functional'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'
local vision = require 'nnscaler.models.vision'

local function conv(inputs, outputs, kernel, stride)
  return nn.Conv2d(inputs, outputs, kernel, { stride = stride or 1, bias = false,
    padding = math.floor(kernel / 2) })
end

-- What a block adds to: its input, or a projection where sizes change.
local function shortcut(inputs, outputs, stride)
  if inputs == outputs and stride == 1 then return nil end
  return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
end

local Basic = nn.class 'Basic'
Basic.expansion = 1

function Basic:init(inputs, planes, stride)
  self.conv1 = conv(inputs, planes, 3, stride)
  self.bn1 = nn.BatchNorm2d(planes)
  self.conv2 = conv(planes, planes, 3)
  self.bn2 = nn.BatchNorm2d(planes)
  self.downsample = shortcut(inputs, planes, stride)
end

function Basic:forward(x)
  local y = F.relu(self.bn1(self.conv1(x)))
  y = self.bn2(self.conv2(y))
  return F.relu(y + (self.downsample and self.downsample(x) or x))
end

local Bottleneck = nn.class 'Bottleneck'
Bottleneck.expansion = 4

function Bottleneck:init(inputs, planes, stride)
  local outputs = 4 * planes
  self.conv1 = conv(inputs, planes, 1)
  self.bn1 = nn.BatchNorm2d(planes)
  self.conv2 = conv(planes, planes, 3, stride)
  self.bn2 = nn.BatchNorm2d(planes)
  self.conv3 = conv(planes, outputs, 1)
  self.bn3 = nn.BatchNorm2d(outputs)
  self.downsample = shortcut(inputs, outputs, stride)
end

function Bottleneck:forward(x)
  local y = F.relu(self.bn1(self.conv1(x)))
  y = F.relu(self.bn2(self.conv2(y)))
  y = self.bn3(self.conv3(y))
  return F.relu(y + (self.downsample and self.downsample(x) or x))
end

---@class nnscaler.models.ResNet : nnscaler.nn.Module
local ResNet = nn.class 'ResNet'
ResNet.forward_arg_names = { 'x', 'y' }

--- Blocks of the four stages, by the number of layers.
ResNet.depths = { [18] = { 2, 2, 2, 2 }, [34] = { 3, 4, 6, 3 }, [50] = { 3, 4, 6, 3 },
  [101] = { 3, 4, 23, 3 }, [152] = { 3, 8, 36, 3 } }

---@param a { classes: integer, layers?: integer|integer[], width?: integer, channels?: integer,
---   small?: boolean } layers: 18, 34, 50 (default), 101 or 152, or the bottleneck blocks of each
---   stage; width: channels of the first stage, 64 by default; channels: of the images; small:
---   for images of 32 pixels, which are not made smaller before the first stage
function ResNet:init(a)
  local area = 'models.resnet'
  a = check.options(area, a, { classes = check.none, layers = 50, width = 64, channels = 3,
    small = false })
  for _, name in ipairs { 'classes', 'width', 'channels' } do
    check.integer(area, name, a[name])
  end
  local depths = ResNet.depths[a.layers]
  if not depths and type(a.layers) ~= 'table' then
    fail('usage', area, ('layers = %s; expected 18, 34, 50, 101, 152 or a list of 4'):format(
      tostring(a.layers)))
  end
  depths = depths or check.each(area, 'layers', a.layers, 4)
  local block = (a.layers == 18 or a.layers == 34) and Basic or Bottleneck
  self.arguments, self.small = a, a.small
  self.conv1 = a.small and conv(a.channels, a.width, 3) or conv(a.channels, a.width, 7, 2)
  self.bn1 = nn.BatchNorm2d(a.width)
  local inputs = a.width
  for stage, count in ipairs(depths) do
    local planes, blocks = a.width * 2 ^ (stage - 1), nn.Sequential()
    for i = 1, count do
      blocks:append(block(inputs, planes, i == 1 and stage > 1 and 2 or 1))
      inputs = planes * block.expansion
    end
    self['layer' .. stage] = blocks
  end
  self.fc = nn.Linear(inputs, a.classes)
  for _, entry in ipairs(self:named_parameters()) do
    local shape = entry.param.shape
    if #shape == 4 then
      entry.param.init = nn.init.kaiming_normal(shape[1] * shape[3] * shape[4])
    end
  end
  self.loss = nn.CrossEntropy()
end

ResNet.forward = vision.forward(function(self, x)
  x = F.relu(self.bn1(self.conv1(x)))
  if not self.small then x = F.max_pool2d(x, 3, { stride = 2, padding = 1 }) end
  for stage = 1, 4 do x = self['layer' .. stage](x) end
  return self.fc(x:mean { -1, -2 })
end)

return ResNet
