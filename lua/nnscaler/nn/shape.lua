--- Layers that change the shape or the size of what they get, or nothing at all.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'

local M = {}

--- Returns its input.
---@class nnscaler.nn.Identity : nnscaler.nn.Module
M.Identity = Module.class 'Identity'

---@param x any
---@return any
function M.Identity:forward(x) return x end

--- Makes one dimension of several.
---@class nnscaler.nn.Flatten : nnscaler.nn.Module
M.Flatten = Module.class 'Flatten'

---@param start_dim? integer 1 by default
---@param end_dim? integer -1 by default
function M.Flatten:init(start_dim, end_dim)
  self.start_dim = check.integer('nn.Flatten', 'start_dim', start_dim or 1, -math.huge)
  self.end_dim = check.integer('nn.Flatten', 'end_dim', end_dim or -1, -math.huge)
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.Flatten:forward(x) return x:flatten(self.start_dim, self.end_dim) end

--- Makes several dimensions of one.
---@class nnscaler.nn.Unflatten : nnscaler.nn.Module
M.Unflatten = Module.class 'Unflatten'

---@param dim integer
---@param unflattened_size integer[] one of them may be -1
function M.Unflatten:init(dim, unflattened_size)
  self.dim = check.integer('nn.Unflatten', 'dim', dim, -math.huge)
  if type(unflattened_size) ~= 'table' or #unflattened_size == 0 then
    fail('usage', 'nn.Unflatten', 'unflattened_size is no list of sizes')
  end
  self.unflattened_size = {}
  for i, size in ipairs(unflattened_size) do
    self.unflattened_size[i] = check.integer('nn.Unflatten', 'unflattened_size', size, -1)
  end
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.Unflatten:forward(x) return x:unflatten(self.dim, self.unflattened_size) end

--- Resizes images [batch, channels, …] of 1, 2 or 3 axes.
---@class nnscaler.nn.Upsample : nnscaler.nn.Module
M.Upsample = Module.class 'Upsample'

---@param options { size?: integer|integer[], scale_factor?: number|number[], mode?: string,
---   align_corners?: boolean, recompute_scale_factor?: boolean } as F.interpolate takes them
function M.Upsample:init(options)
  self.options = check.options('nn.Upsample', options, { size = check.none,
    scale_factor = check.none, mode = 'nearest', align_corners = check.none,
    recompute_scale_factor = check.none })
  if (self.options.size == nil) == (self.options.scale_factor == nil) then
    fail('usage', 'nn.Upsample', 'expected either size or scale_factor')
  end
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.Upsample:forward(x) return F.interpolate(x, self.options) end

-- Upsample of images with a mode of its own.
local function upsampling(name, mode, align_corners)
  M[name] = Module.class(name, M.Upsample)
  M[name].init = function(self, options)
    local o = check.options('nn.' .. name, options, { size = check.none,
      scale_factor = check.none })
    M.Upsample.init(self, { size = o.size, scale_factor = o.scale_factor, mode = mode,
      align_corners = align_corners })
  end
end

--- Upsample with mode nearest: UpsamplingNearest2d { size =, scale_factor = }.
---@class nnscaler.nn.UpsamplingNearest2d : nnscaler.nn.Upsample
upsampling('UpsamplingNearest2d', 'nearest')
--- Upsample with mode bilinear and corners that keep their values.
---@class nnscaler.nn.UpsamplingBilinear2d : nnscaler.nn.Upsample
upsampling('UpsamplingBilinear2d', 'bilinear', true)

-- A class of a function of one integer ≥ 1.
local function class(name, f, argument)
  M[name] = Module.class(name)
  M[name].init = function(self, value)
    self[argument] = check.integer('nn.' .. name, argument, value)
  end
  M[name].forward = function(self, x) return f(x, self[argument]) end
end

--- PixelShuffle(upscale_factor): [..., c · r², h, w] → [..., c, h · r, w · r].
---@class nnscaler.nn.PixelShuffle : nnscaler.nn.Module
class('PixelShuffle', F.pixel_shuffle, 'upscale_factor')
--- PixelUnshuffle(downscale_factor): [..., c, h · r, w · r] → [..., c · r², h, w].
---@class nnscaler.nn.PixelUnshuffle : nnscaler.nn.Module
class('PixelUnshuffle', F.pixel_unshuffle, 'downscale_factor')
--- ChannelShuffle(groups): deals the channels of the groups out in turn.
---@class nnscaler.nn.ChannelShuffle : nnscaler.nn.Module
class('ChannelShuffle', F.channel_shuffle, 'groups')

local windows = { dilation = 1, padding = 0, stride = 1 }

local function checked_windows(self, options)
  local area = 'nn.' .. self.class_name
  local o = check.options(area, options, windows)
  self.dilation = check.each(area, 'dilation', o.dilation, 2)
  self.padding = check.each(area, 'padding', o.padding, 2, 0)
  self.stride = check.each(area, 'stride', o.stride, 2)
end

--- Takes images apart into windows.
---@class nnscaler.nn.Unfold : nnscaler.nn.Module
M.Unfold = Module.class 'Unfold'

---@param kernel_size integer|integer[]
---@param options? nnscaler.WindowOptions
function M.Unfold:init(kernel_size, options)
  self.kernel_size = check.each('nn.Unfold', 'kernel_size', kernel_size, 2)
  checked_windows(self, options)
end

---@param x nnscaler.Tensor [batch, channels, height, width]
---@return nnscaler.Tensor # [batch, channels · window, windows]
function M.Unfold:forward(x) return F.unfold(x, self.kernel_size, self) end

--- Sums windows up to images.
---@class nnscaler.nn.Fold : nnscaler.nn.Module
M.Fold = Module.class 'Fold'

---@param output_size integer|integer[]
---@param kernel_size integer|integer[]
---@param options? nnscaler.WindowOptions
function M.Fold:init(output_size, kernel_size, options)
  self.output_size = check.each('nn.Fold', 'output_size', output_size, 2)
  self.kernel_size = check.each('nn.Fold', 'kernel_size', kernel_size, 2)
  checked_windows(self, options)
end

---@param x nnscaler.Tensor [batch, channels · window, windows]
---@return nnscaler.Tensor # [batch, channels, height, width]
function M.Fold:forward(x) return F.fold(x, self.output_size, self.kernel_size, self) end

--- Cosine of the angle between vectors along a dimension.
---@class nnscaler.nn.CosineSimilarity : nnscaler.nn.Module
M.CosineSimilarity = Module.class 'CosineSimilarity'

---@param dim? integer 1 by default
---@param eps? number 1e-8 by default
function M.CosineSimilarity:init(dim, eps)
  self.dim = check.integer('nn.CosineSimilarity', 'dim', dim or 1, -math.huge)
  self.eps = check.number('nn.CosineSimilarity', 'eps', eps, 1e-8, 0)
end

---@param x1 nnscaler.Tensor
---@param x2 nnscaler.Tensor
---@return nnscaler.Tensor
function M.CosineSimilarity:forward(x1, x2)
  return F.cosine_similarity(x1, x2, self.dim, self.eps)
end

--- p-norm of the differences of vectors.
---@class nnscaler.nn.PairwiseDistance : nnscaler.nn.Module
M.PairwiseDistance = Module.class 'PairwiseDistance'

---@param p? number 2 by default
---@param eps? number 1e-6 by default
---@param keepdim? boolean false by default
function M.PairwiseDistance:init(p, eps, keepdim)
  self.p = check.number('nn.PairwiseDistance', 'p', p, 2)
  self.eps = check.number('nn.PairwiseDistance', 'eps', eps, 1e-6, 0)
  self.keepdim = keepdim or false
end

---@param x1 nnscaler.Tensor [..., width]
---@param x2 nnscaler.Tensor
---@return nnscaler.Tensor
function M.PairwiseDistance:forward(x1, x2)
  return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)
end

return M
