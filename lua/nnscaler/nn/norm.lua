--- Normalisation: over the last dimensions (LayerNorm, RMSNorm) or over the batch (BatchNorm2d).
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

--- (x - mean) / √(variance + eps) over the last dimensions, then scale and shift.
---@class nnscaler.nn.LayerNorm : nnscaler.nn.Module
M.LayerNorm = Module.class 'LayerNorm'

---@param shape integer|integer[] sizes of the last dimensions
---@param options? { eps?: number, affine?: boolean, bias?: boolean, dtype?: string }
function M.LayerNorm:init(shape, options)
  local o = check.options('nn.LayerNorm', options,
    { eps = 1e-5, affine = true, bias = true, dtype = 'float32' })
  self.shape, self.eps = check.sizes('nn.LayerNorm', 'shape', shape), o.eps
  if o.affine then
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
---@param options? { eps?: number, affine?: boolean, dtype?: string } eps: by default the spacing
---   of the dtype at 1
function M.RMSNorm:init(shape, options)
  local o = check.options('nn.RMSNorm', options,
    { eps = check.none, affine = true, dtype = 'float32' })
  self.shape, self.eps = check.sizes('nn.RMSNorm', 'shape', shape), o.eps
  if o.affine then
    self.weight = kinds.parameter { shape = self.shape, dtype = o.dtype, init = init.ones() }
  end
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.RMSNorm:forward(x) return aten.rms_norm(x, self.shape, self.weight, self.eps) end

--- Normalises each channel of images by the statistics of the batch; in evaluation by running ones.
---@class nnscaler.nn.BatchNorm2d : nnscaler.nn.Module
M.BatchNorm2d = Module.class 'BatchNorm2d'

---@param channels integer
---@param options? { eps?: number, momentum?: number, affine?: boolean, track?: boolean,
---   dtype?: string } track: keep running statistics
function M.BatchNorm2d:init(channels, options)
  check.integer('nn.BatchNorm2d', 'channels', channels)
  local o = check.options('nn.BatchNorm2d', options,
    { eps = 1e-5, momentum = 0.1, affine = true, track = true, dtype = 'float32' })
  self.eps, self.momentum = o.eps, o.momentum
  local function buffer(name, how)
    self:register_buffer(name, { shape = { channels }, dtype = o.dtype, init = how })
  end
  if o.affine then
    self.weight = kinds.parameter { shape = { channels }, dtype = o.dtype, init = init.ones() }
    self.bias = kinds.parameter { shape = { channels }, dtype = o.dtype }
  end
  if o.track then
    buffer('running_mean', init.zeros())
    buffer('running_var', init.ones())
    self:register_buffer('num_batches_tracked', { shape = {}, dtype = 'int64' })
  end
end

---@param x nnscaler.Tensor [batch, channels, height, width]
---@return nnscaler.Tensor
function M.BatchNorm2d:forward(x)
  if self.training and self.num_batches_tracked then self.num_batches_tracked:add_(1) end
  local by_batch = self.training or not self.running_mean
  return aten.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, by_batch,
    self.momentum, self.eps, false)
end

return M
