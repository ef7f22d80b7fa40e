--- Pooling and padding over 1, 2 and 3 axes: [batch, channels, …].
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'

local M = {}

-- --- windows -------------------------------------------------------------------------------------

local function max_pool(axes)
  local class, call = Module.class(('MaxPool%dd'):format(axes)), F[('max_pool%dd'):format(axes)]
  function class:init(kernel_size, options)
    local area = 'nn.' .. self.class_name
    local o = check.options(area, options,
      { stride = check.none, padding = 0, dilation = 1, ceil_mode = false })
    self.kernel_size = check.each(area, 'kernel_size', kernel_size, axes)
    self.stride = check.each(area, 'stride', o.stride or kernel_size, axes)
    self.padding = check.each(area, 'padding', o.padding, axes, 0)
    self.dilation = check.each(area, 'dilation', o.dilation, axes)
    self.ceil_mode = o.ceil_mode
    for i, size in ipairs(self.padding) do
      if size > self.kernel_size[i] / 2 then
        fail('usage', area, ('padding = %d; expected at most half of kernel_size %d'):format(size,
          self.kernel_size[i]))
      end
    end
  end
  function class:forward(x) return call(x, self.kernel_size, self) end
  return class
end

local function avg_pool(axes)
  local class, call = Module.class(('AvgPool%dd'):format(axes)), F[('avg_pool%dd'):format(axes)]
  function class:init(kernel_size, options)
    local area = 'nn.' .. self.class_name
    local defaults = { stride = check.none, padding = 0, ceil_mode = false,
      count_include_pad = true, divisor_override = axes > 1 and check.none or nil }
    local o = check.options(area, options, defaults)
    self.kernel_size = check.each(area, 'kernel_size', kernel_size, axes)
    self.stride = check.each(area, 'stride', o.stride or kernel_size, axes)
    self.padding = check.each(area, 'padding', o.padding, axes, 0)
    self.ceil_mode, self.count_include_pad = o.ceil_mode, o.count_include_pad
    if o.divisor_override ~= nil then
      self.divisor_override = check.integer(area, 'divisor_override', o.divisor_override)
    end
  end
  function class:forward(x) return call(x, self.kernel_size, self) end
  return class
end

local function lp_pool(axes)
  local class, call = Module.class(('LPPool%dd'):format(axes)), F[('lp_pool%dd'):format(axes)]
  function class:init(norm_type, kernel_size, options)
    local area = 'nn.' .. self.class_name
    local o = check.options(area, options, { stride = check.none, ceil_mode = false })
    self.norm_type = check.number(area, 'norm_type', norm_type)
    self.kernel_size = check.each(area, 'kernel_size', kernel_size, axes)
    self.stride = check.each(area, 'stride', o.stride or kernel_size, axes)
    self.ceil_mode = o.ceil_mode
  end
  function class:forward(x) return call(x, self.norm_type, self.kernel_size, self) end
  return class
end

local function adaptive(kind, axes)
  local class = Module.class(('Adaptive%sPool%dd'):format(kind, axes))
  local call = F[('adaptive_%s_pool%dd'):format(kind:lower(), axes)]
  function class:init(output_size)
    self.output_size = check.each('nn.' .. self.class_name, 'output_size', output_size, axes)
  end
  function class:forward(x) return call(x, self.output_size) end
  return class
end

--- The greatest element of each window: MaxPool1d(kernel_size, { stride = kernel_size, padding = 0,
--- dilation = 1, ceil_mode = false }).
---@class nnscaler.nn.MaxPool1d : nnscaler.nn.Module
M.MaxPool1d = max_pool(1)
--- The same over images; sizes as one number or as { height, width }.
---@class nnscaler.nn.MaxPool2d : nnscaler.nn.Module
M.MaxPool2d = max_pool(2)
--- The same over volumes.
---@class nnscaler.nn.MaxPool3d : nnscaler.nn.Module
M.MaxPool3d = max_pool(3)

--- The mean of each window: AvgPool1d(kernel_size, { stride = kernel_size, padding = 0, ceil_mode =
--- false, count_include_pad = true }).
---@class nnscaler.nn.AvgPool1d : nnscaler.nn.Module
M.AvgPool1d = avg_pool(1)
--- The same over images, with divisor_override among the options.
---@class nnscaler.nn.AvgPool2d : nnscaler.nn.Module
M.AvgPool2d = avg_pool(2)
--- The same over volumes.
---@class nnscaler.nn.AvgPool3d : nnscaler.nn.Module
M.AvgPool3d = avg_pool(3)

--- The p-norm of each window: LPPool1d(norm_type, kernel_size, { stride = kernel_size, ceil_mode =
--- false }).
---@class nnscaler.nn.LPPool1d : nnscaler.nn.Module
M.LPPool1d = lp_pool(1)
--- The same over images.
---@class nnscaler.nn.LPPool2d : nnscaler.nn.Module
M.LPPool2d = lp_pool(2)
--- The same over volumes.
---@class nnscaler.nn.LPPool3d : nnscaler.nn.Module
M.LPPool3d = lp_pool(3)

--- Means over windows that give an output of the size asked for: AdaptiveAvgPool1d(output_size).
---@class nnscaler.nn.AdaptiveAvgPool1d : nnscaler.nn.Module
M.AdaptiveAvgPool1d = adaptive('Avg', 1)
--- The same over images.
---@class nnscaler.nn.AdaptiveAvgPool2d : nnscaler.nn.Module
M.AdaptiveAvgPool2d = adaptive('Avg', 2)
--- The same over volumes.
---@class nnscaler.nn.AdaptiveAvgPool3d : nnscaler.nn.Module
M.AdaptiveAvgPool3d = adaptive('Avg', 3)
--- Greatest elements of such windows.
---@class nnscaler.nn.AdaptiveMaxPool1d : nnscaler.nn.Module
M.AdaptiveMaxPool1d = adaptive('Max', 1)
--- The same over images.
---@class nnscaler.nn.AdaptiveMaxPool2d : nnscaler.nn.Module
M.AdaptiveMaxPool2d = adaptive('Max', 2)
--- The same over volumes.
---@class nnscaler.nn.AdaptiveMaxPool3d : nnscaler.nn.Module
M.AdaptiveMaxPool3d = adaptive('Max', 3)

-- --- padding -------------------------------------------------------------------------------------

-- Padding by a mode: one number for all sides, or { left, right, top, bottom, … }.
local function padding(kind, mode, axes)
  local class = Module.class(('%sPad%dd'):format(kind, axes))
  function class:init(sizes, value)
    local area = 'nn.' .. self.class_name
    self.padding = {}
    if type(sizes) == 'table' and #sizes ~= 2 * axes then
      fail('usage', area, ('padding has %d sizes; expected %d, or one number'):format(#sizes,
        2 * axes))
    end
    for i = 1, 2 * axes do
      local size = type(sizes) == 'table' and sizes[i] or sizes
      self.padding[i] = check.integer(area, 'padding', size, mode == 'constant' and -math.huge or 0)
    end
    if kind == 'Constant' then self.value = check.number(area, 'value', value) end
  end
  function class:forward(x) return F.pad(x, self.padding, mode, self.value) end
  return class
end

--- Zeros around sequences: ZeroPad1d(padding) with one number or { left, right }.
---@class nnscaler.nn.ZeroPad1d : nnscaler.nn.Module
M.ZeroPad1d = padding('Zero', 'constant', 1)
--- The same around images: { left, right, top, bottom }.
---@class nnscaler.nn.ZeroPad2d : nnscaler.nn.Module
M.ZeroPad2d = padding('Zero', 'constant', 2)
--- The same around volumes.
---@class nnscaler.nn.ZeroPad3d : nnscaler.nn.Module
M.ZeroPad3d = padding('Zero', 'constant', 3)
--- ConstantPad1d(padding, value): a value around sequences.
---@class nnscaler.nn.ConstantPad1d : nnscaler.nn.Module
M.ConstantPad1d = padding('Constant', 'constant', 1)
--- The same around images.
---@class nnscaler.nn.ConstantPad2d : nnscaler.nn.Module
M.ConstantPad2d = padding('Constant', 'constant', 2)
--- The same around volumes.
---@class nnscaler.nn.ConstantPad3d : nnscaler.nn.Module
M.ConstantPad3d = padding('Constant', 'constant', 3)
--- ReflectionPad1d(padding): what lies inside, mirrored at the border.
---@class nnscaler.nn.ReflectionPad1d : nnscaler.nn.Module
M.ReflectionPad1d = padding('Reflection', 'reflect', 1)
--- The same around images.
---@class nnscaler.nn.ReflectionPad2d : nnscaler.nn.Module
M.ReflectionPad2d = padding('Reflection', 'reflect', 2)
--- The same around volumes.
---@class nnscaler.nn.ReflectionPad3d : nnscaler.nn.Module
M.ReflectionPad3d = padding('Reflection', 'reflect', 3)
--- ReplicationPad1d(padding): the border's elements again.
---@class nnscaler.nn.ReplicationPad1d : nnscaler.nn.Module
M.ReplicationPad1d = padding('Replication', 'replicate', 1)
--- The same around images.
---@class nnscaler.nn.ReplicationPad2d : nnscaler.nn.Module
M.ReplicationPad2d = padding('Replication', 'replicate', 2)
--- The same around volumes.
---@class nnscaler.nn.ReplicationPad3d : nnscaler.nn.Module
M.ReplicationPad3d = padding('Replication', 'replicate', 3)
--- CircularPad1d(padding): what lies at the other side.
---@class nnscaler.nn.CircularPad1d : nnscaler.nn.Module
M.CircularPad1d = padding('Circular', 'circular', 1)
--- The same around images.
---@class nnscaler.nn.CircularPad2d : nnscaler.nn.Module
M.CircularPad2d = padding('Circular', 'circular', 2)
--- The same around volumes.
---@class nnscaler.nn.CircularPad3d : nnscaler.nn.Module
M.CircularPad3d = padding('Circular', 'circular', 3)

return M
