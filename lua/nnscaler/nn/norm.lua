--- Normalisation: over the last dimensions (LayerNorm, RMSNorm), the batch (BatchNorm), the image
--- of each channel (InstanceNorm), groups of channels (GroupNorm) or neighbours.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

--- (x - mean) / √(variance + eps) over the last dimensions, then scale and shift.
---@class nnscaler.nn.LayerNorm : nnscaler.nn.Module
M.LayerNorm = Module.class 'LayerNorm'

---@param shape integer|integer[] sizes of the last dimensions
---@param options? { eps?: number, elementwise_affine?: boolean, bias?: boolean, dtype?: string }
function M.LayerNorm:init(shape, options)
  local o = check.options('nn.LayerNorm', options,
    { eps = 1e-5, elementwise_affine = true, bias = true, dtype = 'float32' })
  self.shape, self.eps = check.sizes('nn.LayerNorm', 'shape', shape), o.eps
  if o.elementwise_affine then
    self.weight = kinds.parameter { shape = self.shape, dtype = o.dtype, init = init.ones() }
    if o.bias then self.bias = kinds.parameter { shape = self.shape, dtype = o.dtype } end
  end
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.LayerNorm:forward(x)
  return aten.layer_norm(x, self.shape, self.weight, self.bias, self.eps)
end

--- x / √(mean of squares + eps) over the last dimensions, then scale.
---@class nnscaler.nn.RMSNorm : nnscaler.nn.Module
M.RMSNorm = Module.class 'RMSNorm'

---@param shape integer|integer[] sizes of the last dimensions
---@param options? { eps?: number, elementwise_affine?: boolean, dtype?: string } eps: by default
---   the spacing of the dtype at 1
function M.RMSNorm:init(shape, options)
  local o = check.options('nn.RMSNorm', options,
    { eps = check.none, elementwise_affine = true, dtype = 'float32' })
  self.shape, self.eps = check.sizes('nn.RMSNorm', 'shape', shape), o.eps
  if o.elementwise_affine then
    self.weight = kinds.parameter { shape = self.shape, dtype = o.dtype, init = init.ones() }
  end
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.RMSNorm:forward(x) return aten.rms_norm(x, self.shape, self.weight, self.eps) end

-- Weight, bias and running statistics of channels, as the options ask for them.
local function set_up(self, num_features, options, defaults)
  local area = 'nn.' .. self.class_name
  check.integer(area, 'num_features', num_features)
  local o = check.options(area, options, defaults)
  self.eps, self.momentum = check.number(area, 'eps', o.eps, nil, 0),
    check.number(area, 'momentum', o.momentum, nil, 0)
  local shape = { num_features }
  if o.affine then
    self.weight = kinds.parameter { shape = shape, dtype = o.dtype, init = init.ones() }
    self.bias = kinds.parameter { shape = shape, dtype = o.dtype }
  end
  if o.track_running_stats then
    self:register_buffer('running_mean', { shape = shape, dtype = o.dtype })
    self:register_buffer('running_var', { shape = shape, dtype = o.dtype, init = init.ones() })
    self:register_buffer('num_batches_tracked', { shape = {}, dtype = 'int64' })
  end
end

-- Refuses inputs of another number of axes behind [batch, channels].
local function check_rank(self, x, least, most)
  local axes = x:dim() - 2
  if axes < least or axes > most then
    fail('model', 'nn.' .. self.class_name, ('input [%s]; expected [batch, channels] and %s axes')
      :format(table.concat(x.shape, ', '), least == most and most or ('%d or %d'):format(least,
        most)))
  end
end

local function batch_norm(name, least, most)
  local class = Module.class(name)
  function class:init(num_features, options)
    set_up(self, num_features, options, { eps = 1e-5, momentum = 0.1, affine = true,
      track_running_stats = true, dtype = 'float32' })
  end
  function class:forward(x)
    check_rank(self, x, least, most)
    if self.training and self.num_batches_tracked then self.num_batches_tracked:add_(1) end
    local by_batch = self.training or not self.running_mean
    return aten.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var,
      by_batch, self.momentum, self.eps, false)
  end
  return class
end

--- Normalises each channel by the statistics of the batch; in evaluation by running ones:
--- BatchNorm1d(num_features, { eps = 1e-5, momentum = 0.1, affine = true, track_running_stats =
--- true, dtype = 'float32' }) of [batch, channels] or [batch, channels, length]. Under a plan that
--- cuts the batch, statistics are those of the whole micro-batch.
---@class nnscaler.nn.BatchNorm1d : nnscaler.nn.Module
---@field weight nnscaler.Tensor|nil [num_features]
---@field bias nnscaler.Tensor|nil [num_features]
M.BatchNorm1d = batch_norm('BatchNorm1d', 0, 1)
--- The same of images [batch, channels, height, width].
---@class nnscaler.nn.BatchNorm2d : nnscaler.nn.Module
M.BatchNorm2d = batch_norm('BatchNorm2d', 2, 2)
--- The same of volumes [batch, channels, depth, height, width].
---@class nnscaler.nn.BatchNorm3d : nnscaler.nn.Module
M.BatchNorm3d = batch_norm('BatchNorm3d', 3, 3)

local function instance_norm(axes)
  local class = Module.class(('InstanceNorm%dd'):format(axes))
  function class:init(num_features, options)
    set_up(self, num_features, options, { eps = 1e-5, momentum = 0.1, affine = false,
      track_running_stats = false, dtype = 'float32' })
  end
  function class:forward(x)
    check_rank(self, x, axes, axes)
    return F.instance_norm(x, self.running_mean, self.running_var, { weight = self.weight,
      bias = self.bias, momentum = self.momentum, eps = self.eps,
      use_input_stats = self.training or not self.running_mean })
  end
  return class
end

--- Normalises each channel of each sample over its length: InstanceNorm1d(num_features, { eps =
--- 1e-5, momentum = 0.1, affine = false, track_running_stats = false, dtype = 'float32' }). With
--- running statistics, evaluation normalises by those.
---@class nnscaler.nn.InstanceNorm1d : nnscaler.nn.Module
---@field weight nnscaler.Tensor|nil [num_features]
---@field bias nnscaler.Tensor|nil [num_features]
M.InstanceNorm1d = instance_norm(1)
--- The same over images.
---@class nnscaler.nn.InstanceNorm2d : nnscaler.nn.Module
M.InstanceNorm2d = instance_norm(2)
--- The same over volumes.
---@class nnscaler.nn.InstanceNorm3d : nnscaler.nn.Module
M.InstanceNorm3d = instance_norm(3)

--- Normalises groups of channels of each sample.
---@class nnscaler.nn.GroupNorm : nnscaler.nn.Module
---@field weight nnscaler.Tensor|nil [num_channels]
---@field bias nnscaler.Tensor|nil [num_channels]
M.GroupNorm = Module.class 'GroupNorm'

---@param num_groups integer
---@param num_channels integer
---@param options? { eps?: number, affine?: boolean, dtype?: string }
function M.GroupNorm:init(num_groups, num_channels, options)
  check.integer('nn.GroupNorm', 'num_groups', num_groups)
  check.integer('nn.GroupNorm', 'num_channels', num_channels)
  if num_channels % num_groups ~= 0 then
    fail('usage', 'nn.GroupNorm', ('%d groups do not divide %d channels'):format(num_groups,
      num_channels))
  end
  local o = check.options('nn.GroupNorm', options,
    { eps = 1e-5, affine = true, dtype = 'float32' })
  self.num_groups, self.eps = num_groups, check.number('nn.GroupNorm', 'eps', o.eps, nil, 0)
  if o.affine then
    self.weight = kinds.parameter { shape = { num_channels }, dtype = o.dtype, init = init.ones() }
    self.bias = kinds.parameter { shape = { num_channels }, dtype = o.dtype }
  end
end

---@param x nnscaler.Tensor [batch, num_channels, …]
---@return nnscaler.Tensor
function M.GroupNorm:forward(x)
  return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
end

--- x / (k + alpha · mean of squares over neighbouring channels) ^ beta.
---@class nnscaler.nn.LocalResponseNorm : nnscaler.nn.Module
M.LocalResponseNorm = Module.class 'LocalResponseNorm'

---@param size integer number of channels
---@param alpha? number 1e-4 by default
---@param beta? number 0.75 by default
---@param k? number 1 by default
function M.LocalResponseNorm:init(size, alpha, beta, k)
  local area = 'nn.LocalResponseNorm'
  self.size = check.integer(area, 'size', size)
  self.alpha = check.number(area, 'alpha', alpha, 1e-4)
  self.beta, self.k = check.number(area, 'beta', beta, 0.75), check.number(area, 'k', k, 1)
end

---@param x nnscaler.Tensor [batch, channels, …]
---@return nnscaler.Tensor
function M.LocalResponseNorm:forward(x)
  return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)
end

return M
