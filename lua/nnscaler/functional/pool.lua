--- Pooling over images of 1, 2 and 3 axes: [batch, channels, …], or without the batch.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten

local M = {}

local spread = arguments.spread

---@class nnscaler.PoolOptions
---@field stride? integer|integer[] the kernel's size by default
---@field padding? integer|integer[]
---@field dilation? integer|integer[] of max_pool
---@field ceil_mode? boolean whether a last window may reach over the end
---@field count_include_pad? boolean of avg_pool: whether the padding counts, true by default
---@field divisor_override? integer of avg_pool2d and avg_pool3d: in place of the window's size

local function max_pool(n)
  local name = ('max_pool%dd'):format(n)
  local call = aten[name]
  local read = arguments.reader(name, { 'ceil_mode', 'dilation', 'padding', 'stride' })
  return function(input, kernel_size, options)
    local o = read(options)
    return call(input, spread(kernel_size, n), spread(o.stride or kernel_size, n),
      spread(o.padding or 0, n), spread(o.dilation or 1, n), o.ceil_mode or false)
  end
end

local function avg_pool(n)
  local name = ('avg_pool%dd'):format(n)
  local call, names = aten[name], { 'ceil_mode', 'count_include_pad', 'padding', 'stride' }
  if n > 1 then table.insert(names, 3, 'divisor_override') end
  local read = arguments.reader(name, names)
  return function(input, kernel_size, options)
    local o = read(options)
    local kernel, stride = spread(kernel_size, n), spread(o.stride or kernel_size, n)
    local padding, ceil = spread(o.padding or 0, n), o.ceil_mode or false
    local padded = o.count_include_pad ~= false
    if n == 1 then return call(input, kernel, stride, padding, ceil, padded) end
    return call(input, kernel, stride, padding, ceil, padded, o.divisor_override)
  end
end

-- (Σ xᵖ)^(1/p) of each window.
local function lp_pool(n)
  local mean = avg_pool(n)
  return function(input, norm_type, kernel_size, options)
    local count = 1
    for _, size in ipairs(spread(kernel_size, n)) do count = count * size end
    local powers = mean(aten.pow(input, norm_type), kernel_size, options)
    powers = aten.mul(aten.sign(powers), aten.relu(aten.abs(powers))) * count
    return aten.pow(powers, 1 / norm_type)
  end
end

local function adaptive(name, n)
  local call = aten[('adaptive_%s_pool%dd'):format(name, n)]
  return function(input, output_size) return (call(input, spread(output_size, n))) end
end

--- The greatest element, or the mean, of windows.
---@alias nnscaler.Pooling fun(input, kernel_size, options?: nnscaler.PoolOptions): any
---@type nnscaler.Pooling
M.max_pool1d, M.max_pool2d, M.max_pool3d = max_pool(1), max_pool(2), max_pool(3)
---@type nnscaler.Pooling
M.avg_pool1d, M.avg_pool2d, M.avg_pool3d = avg_pool(1), avg_pool(2), avg_pool(3)

--- The p-norm of windows.
---@alias nnscaler.LPPooling fun(input, norm_type, kernel_size, options?: nnscaler.PoolOptions): any
---@type nnscaler.LPPooling
M.lp_pool1d, M.lp_pool2d, M.lp_pool3d = lp_pool(1), lp_pool(2), lp_pool(3)

--- Pooling over windows that give an output of the size asked for.
---@alias nnscaler.AdaptivePooling fun(input, output_size: integer|integer[]): any
---@type nnscaler.AdaptivePooling
M.adaptive_avg_pool1d, M.adaptive_avg_pool2d = adaptive('avg', 1), adaptive('avg', 2)
---@type nnscaler.AdaptivePooling
M.adaptive_avg_pool3d = adaptive('avg', 3)
---@type nnscaler.AdaptivePooling
M.adaptive_max_pool1d, M.adaptive_max_pool2d = adaptive('max', 1), adaptive('max', 2)
---@type nnscaler.AdaptivePooling
M.adaptive_max_pool3d = adaptive('max', 3)

return M
