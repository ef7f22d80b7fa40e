--- Convolutions over 1, 2 and 3 axes, and transposed ones: [batch, channels, …].
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

local defaults = { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true,
  padding_mode = 'zeros', dtype = 'float32' }
local transposed_defaults = { stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1,
  bias = true, dtype = 'float32' }

-- What all convolutions have: checked arguments, weight and bias. `transposed`: weights are
-- [inputs, outputs / groups, …].
local function set_up(self, axes, transposed, in_channels, out_channels, kernel_size, options)
  local area = 'nn.' .. self.class_name
  check.integer(area, 'in_channels', in_channels)
  check.integer(area, 'out_channels', out_channels)
  local kernel = check.each(area, 'kernel_size', kernel_size, axes)
  local o = check.options(area, options, transposed and transposed_defaults or defaults)
  local groups = check.integer(area, 'groups', o.groups)
  if in_channels % groups ~= 0 or out_channels % groups ~= 0 then
    fail('usage', area, ('%d groups do not divide %d input and %d output channels'):format(groups,
      in_channels, out_channels))
  end
  self.groups, self.kernel_size = groups, kernel
  self.stride = check.each(area, 'stride', o.stride, axes)
  self.dilation = check.each(area, 'dilation', o.dilation, axes)
  local shape = transposed and { in_channels, out_channels / groups }
    or { out_channels, in_channels / groups }
  local fan_in = shape[2]
  for i, size in ipairs(kernel) do shape[i + 2], fan_in = size, fan_in * size end
  local how = init.linear_default(fan_in)
  self.weight = kinds.parameter { dtype = o.dtype, init = how, shape = shape }
  if o.bias then
    self.bias = kinds.parameter { shape = { out_channels }, dtype = o.dtype, init = how }
  end
  return o, area
end

-- Sizes to add before and after each axis, from the last one inwards, as F.pad takes them.
local function around(self, padding)
  local list = {}
  for i = #self.kernel_size, 1, -1 do
    local total = padding == 'same' and self.dilation[i] * (self.kernel_size[i] - 1)
    list[#list + 1] = total and math.floor(total / 2) or padding[i]
    list[#list + 1] = total and total - math.floor(total / 2) or padding[i]
  end
  return list
end

local function convolution(axes)
  local name = ('Conv%dd'):format(axes)
  local call, class = F[('conv%dd'):format(axes)], Module.class(name)

  function class:init(in_channels, out_channels, kernel_size, options)
    local o, area = set_up(self, axes, false, in_channels, out_channels, kernel_size, options)
    local mode = check.one_of(area, 'padding_mode', o.padding_mode,
      { 'zeros', 'reflect', 'replicate', 'circular' })
    if type(o.padding) == 'string' then
      self.padding = check.one_of(area, 'padding', o.padding, { 'same', 'valid' })
    else
      self.padding = check.each(area, 'padding', o.padding, axes, 0)
    end
    for _, stride in ipairs(self.stride) do
      if self.padding == 'same' and stride ~= 1 then
        fail('usage', area, ("padding = 'same' with stride %d; expected stride 1"):format(stride))
      end
    end
    if mode ~= 'zeros' and self.padding ~= 'valid' then
      self.mode, self.around, self.padding = mode, around(self, self.padding), 0
    end
  end

  function class:forward(x)
    if self.mode then x = F.pad(x, self.around, self.mode) end
    return call(x, self.weight, self.bias, self)
  end
  return class
end

local function transposed(axes)
  local name = ('ConvTranspose%dd'):format(axes)
  local call, class = F[('conv_transpose%dd'):format(axes)], Module.class(name)

  function class:init(in_channels, out_channels, kernel_size, options)
    local o, area = set_up(self, axes, true, in_channels, out_channels, kernel_size, options)
    self.padding = check.each(area, 'padding', o.padding, axes, 0)
    self.output_padding = check.each(area, 'output_padding', o.output_padding, axes, 0)
    for i, extra in ipairs(self.output_padding) do
      if extra >= math.max(self.stride[i], self.dilation[i]) then
        fail('usage', area, ('output_padding = %d; expected less than stride or dilation')
          :format(extra))
      end
    end
  end

  -- The padding that gives an output of these sizes.
  function class:_padding_for(x, output_size)
    local area, extra = 'nn.' .. name, {}
    local sizes = check.each(area, 'output_size', output_size, axes)
    for i, size in ipairs(sizes) do
      local least = (x.shape[x:dim() - axes + i] - 1) * self.stride[i] - 2 * self.padding[i]
        + self.dilation[i] * (self.kernel_size[i] - 1) + 1
      if size < least or size >= least + self.stride[i] then
        fail('model', area, ('output_size = %d; expected %d to %d for an input of %d'):format(size,
          least, least + self.stride[i] - 1, x.shape[x:dim() - axes + i]))
      end
      extra[i] = size - least
    end
    return extra
  end

  function class:forward(x, output_size)
    return call(x, self.weight, self.bias, { stride = self.stride, padding = self.padding,
      output_padding = output_size and self:_padding_for(x, output_size) or self.output_padding,
      groups = self.groups, dilation = self.dilation })
  end
  return class
end

--- Convolution (cross-correlation) over sequences: Conv1d(in_channels, out_channels, kernel_size,
--- { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true, padding_mode = 'zeros',
--- dtype = 'float32' }). Padding may be 'same' or 'valid'; padding_mode reflect, replicate or
--- circular.
---@class nnscaler.nn.Conv1d : nnscaler.nn.Module
---@field weight nnscaler.Tensor [out_channels, in_channels / groups, kernel_size]
---@field bias nnscaler.Tensor|nil [out_channels]
M.Conv1d = convolution(1)

--- Convolution (cross-correlation) over images; arguments as of Conv1d, sizes as one number or as
--- { height, width }.
---@class nnscaler.nn.Conv2d : nnscaler.nn.Module
---@field weight nnscaler.Tensor [out_channels, in_channels / groups, height, width]
---@field bias nnscaler.Tensor|nil [out_channels]
M.Conv2d = convolution(2)

--- Convolution (cross-correlation) over volumes; arguments as of Conv1d, sizes as one number or as
--- { depth, height, width }.
---@class nnscaler.nn.Conv3d : nnscaler.nn.Module
---@field weight nnscaler.Tensor [out_channels, in_channels / groups, depth, height, width]
---@field bias nnscaler.Tensor|nil [out_channels]
M.Conv3d = convolution(3)

--- The gradient of a convolution over sequences with regard to its input: ConvTranspose1d(
--- in_channels, out_channels, kernel_size, { stride = 1, padding = 0, output_padding = 0, groups =
--- 1, bias = true, dilation = 1, dtype = 'float32' }). forward(x, output_size) finds the padding of
--- the result by its size.
---@class nnscaler.nn.ConvTranspose1d : nnscaler.nn.Module
---@field weight nnscaler.Tensor [in_channels, out_channels / groups, kernel_size]
---@field bias nnscaler.Tensor|nil [out_channels]
M.ConvTranspose1d = transposed(1)

--- The same over images.
---@class nnscaler.nn.ConvTranspose2d : nnscaler.nn.Module
---@field weight nnscaler.Tensor [in_channels, out_channels / groups, height, width]
---@field bias nnscaler.Tensor|nil [out_channels]
M.ConvTranspose2d = transposed(2)

--- The same over volumes.
---@class nnscaler.nn.ConvTranspose3d : nnscaler.nn.Module
---@field weight nnscaler.Tensor [in_channels, out_channels / groups, depth, height, width]
---@field bias nnscaler.Tensor|nil [out_channels]
M.ConvTranspose3d = transposed(3)

return M
