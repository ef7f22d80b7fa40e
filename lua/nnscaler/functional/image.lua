--- Images resized, padded, taken apart into windows and put together, and sampled by a grid.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'
local pool = require 'nnscaler.functional.pool'

local M = {}

local spread, choice = arguments.spread, arguments.choice

--- Pads from the last dimension inwards: { left, right, top, bottom, … }.
---@param input nnscaler.Tensor
---@param pad integer[]
---@param mode? 'constant'|'reflect'|'replicate'|'circular'
---@param value? number
---@return nnscaler.Tensor
function M.pad(input, pad, mode, value) return aten.pad(input, pad, mode or 'constant', value) end

-- --- another size --------------------------------------------------------------------------------

---@class nnscaler.InterpolateOptions
---@field size? integer|integer[] of the result
---@field scale_factor? number|number[] in place of the size
---@field mode? string nearest (by default), nearest-exact, linear, bilinear, bicubic, trilinear or
---  area
---@field align_corners? boolean whether corner pixels keep their values; of linear and cubic ones
---@field recompute_scale_factor? boolean whether positions follow from sizes, not from the factor
---@field antialias? boolean of bilinear and bicubic, when the image shrinks

local operators = {
  nearest = { 'upsample_nearest1d', 'upsample_nearest2d', 'upsample_nearest3d' },
  ['nearest-exact'] = { '_upsample_nearest_exact1d', '_upsample_nearest_exact2d',
    '_upsample_nearest_exact3d' },
  linear = { 'upsample_linear1d' }, bilinear = { nil, 'upsample_bilinear2d' },
  bicubic = { nil, 'upsample_bicubic2d' }, trilinear = { nil, nil, 'upsample_trilinear3d' },
}
local modes = { 'nearest', 'nearest-exact', 'linear', 'bilinear', 'bicubic', 'trilinear', 'area' }

local function sizes_of(input, scale, axes)
  local size = {}
  for i = 1, axes do size[i] = math.floor(input.shape[i + 2] * scale[i]) end
  return size
end

local function refuse(message) fail('model', 'functional.interpolate', message) end

-- Checks what is asked for; returns the mode, the size or the scales, one for each axis.
local function checked(input, o)
  local axes = input:dim() - 2
  local mode = choice('interpolate', 'mode', o.mode or 'nearest', modes)
  if (o.size == nil) == (o.scale_factor == nil) then
    refuse(o.size and 'size and scale_factor are given; expected one of them'
      or 'neither size nor scale_factor; expected one of them')
  end
  local given = spread(o.size or o.scale_factor, axes)
  if #given ~= axes then
    refuse(('%d sizes or factors for an image of %d axes'):format(#given, axes))
  end
  if mode ~= 'area' and not operators[mode][axes] then
    refuse(("mode '%s' for an image of %d axes, [batch, channels, …]"):format(mode, axes))
  end
  local aligns = mode:match 'linear' or mode == 'bicubic'
  if o.align_corners ~= nil and not aligns then
    refuse(("align_corners with mode '%s'; expected linear, bilinear, bicubic or trilinear")
      :format(mode))
  end
  if o.antialias and mode ~= 'bilinear' and mode ~= 'bicubic' then
    refuse(("antialias with mode '%s'; expected bilinear or bicubic"):format(mode))
  end
  if o.scale_factor and not o.recompute_scale_factor and mode ~= 'area' then
    return mode, nil, given, aligns
  end
  return mode, o.size and given or sizes_of(input, given, axes), nil, aligns
end

local interpolate = arguments.reader('interpolate',
  { 'align_corners', 'antialias', 'mode', 'recompute_scale_factor', 'scale_factor', 'size' })

--- Resizes images.
---@param input nnscaler.Tensor [batch, channels, …] with 1, 2 or 3 axes of the image
---@param options nnscaler.InterpolateOptions
---@return nnscaler.Tensor
function M.interpolate(input, options)
  local o = interpolate(options)
  local mode, size, scales, aligns = checked(input, o)
  local axes = input:dim() - 2
  if mode == 'area' then
    return pool[('adaptive_avg_pool%dd'):format(axes)](input, size)
  end
  local name = operators[mode][axes]
  if o.antialias then name = ('_%s_aa'):format(name) end
  local call = aten[name .. '.vec']
  if aligns then return call(input, size, o.align_corners or false, scales) end
  return call(input, size, scales)
end

--- The same under its older name.
M.upsample = M.interpolate

-- --- channels and pixels -------------------------------------------------------------------------

--- [..., c · r², h, w] → [..., c, h · r, w · r]: channels become pixels.
---@param input nnscaler.Tensor
---@param upscale_factor integer r
---@return nnscaler.Tensor
function M.pixel_shuffle(input, upscale_factor)
  local r, rank, shape = upscale_factor, input:dim(), input.shape
  if rank < 3 or shape[rank - 2] % (r * r) ~= 0 then
    fail('model', 'functional.pixel_shuffle', ('[%s]; expected [..., channels, height, width] with '
      .. 'channels divisible by %d'):format(table.concat(shape, ', '), r * r))
  end
  local x = aten.unflatten(input, -3, { shape[rank - 2] / (r * r), r, r })
  x = aten.movedim(x, { -4, -3 }, { -3, -1 }) -- c, h, r, w, r
  return aten.flatten(aten.flatten(x, -4, -3), -2, -1)
end

--- [..., c, h · r, w · r] → [..., c · r², h, w]: pixels become channels.
---@param input nnscaler.Tensor
---@param downscale_factor integer r
---@return nnscaler.Tensor
function M.pixel_unshuffle(input, downscale_factor)
  local r, rank, shape = downscale_factor, input:dim(), input.shape
  if rank < 3 or shape[rank - 1] % r ~= 0 or shape[rank] % r ~= 0 then
    fail('model', 'functional.pixel_unshuffle', ('[%s]; expected [..., channels, height, width] '
      .. 'with height and width divisible by %d'):format(table.concat(shape, ', '), r))
  end
  local x = aten.unflatten(input, -1, { shape[rank] / r, r })
  x = aten.unflatten(x, -3, { shape[rank - 1] / r, r }) -- c, h, r, w, r
  return aten.flatten(aten.movedim(x, { -3, -1 }, { -4, -3 }), -5, -3)
end

--- Deals the channels (dimension 1) of the groups out in turn.
---@param input nnscaler.Tensor [batch, channels, …]
---@param groups integer
---@return nnscaler.Tensor
function M.channel_shuffle(input, groups)
  local channels = input.shape[2]
  if input:dim() < 3 or channels % groups ~= 0 then
    fail('model', 'functional.channel_shuffle', ('%d groups of [%s]; expected [batch, channels, …] '
      .. 'whose channels they divide'):format(groups, table.concat(input.shape, ', ')))
  end
  local x = aten.unflatten(input, 1, { groups, channels / groups })
  return aten.flatten(aten.transpose(x, 1, 2), 1, 2)
end

-- --- windows -------------------------------------------------------------------------------------

---@class nnscaler.WindowOptions
---@field dilation? integer|integer[] 1
---@field padding? integer|integer[] 0
---@field stride? integer|integer[] 1

local function windows(o)
  return spread(o.dilation or 1, 2), spread(o.padding or 0, 2), spread(o.stride or 1, 2)
end

local window = { 'dilation', 'padding', 'stride' }
local unfold, fold = arguments.reader('unfold', window), arguments.reader('fold', window)

--- The windows of images, each as a column.
---@param input nnscaler.Tensor [batch, channels, height, width]
---@param kernel_size integer|integer[]
---@param options? nnscaler.WindowOptions
---@return nnscaler.Tensor # [batch, channels · window, windows]
function M.unfold(input, kernel_size, options)
  return aten.im2col(input, spread(kernel_size, 2), windows(unfold(options)))
end

--- Sums windows up to images.
---@param input nnscaler.Tensor [batch, channels · window, windows]
---@param output_size integer|integer[] height and width
---@param kernel_size integer|integer[]
---@param options? nnscaler.WindowOptions
---@return nnscaler.Tensor # [batch, channels, height, width]
function M.fold(input, output_size, kernel_size, options)
  return aten.col2im(input, spread(output_size, 2), spread(kernel_size, 2), windows(fold(options)))
end

-- --- grids ---------------------------------------------------------------------------------------

local interpolations = { bilinear = 0, nearest = 1, bicubic = 2 }
local paddings = { zeros = 0, border = 1, reflection = 2 }

local grid_sample = arguments.reader('grid_sample', { 'align_corners', 'mode', 'padding_mode' })

--- Values of images at the places of a grid, whose numbers go from -1 to 1 across the image.
---@param input nnscaler.Tensor [batch, channels, height, width], or with depth before the height
---@param grid nnscaler.Tensor [batch, height, width, 2], or [batch, depth, height, width, 3]
---@param options? { mode?: 'bilinear'|'nearest'|'bicubic',
---   padding_mode?: 'zeros'|'border'|'reflection', align_corners?: boolean }
---@return nnscaler.Tensor
function M.grid_sample(input, grid, options)
  local o = grid_sample(options)
  local mode = choice('grid_sample', 'mode', o.mode or 'bilinear',
    { 'bicubic', 'bilinear', 'nearest' })
  local padding = choice('grid_sample', 'padding_mode', o.padding_mode or 'zeros',
    { 'border', 'reflection', 'zeros' })
  return aten.grid_sampler(input, grid, interpolations[mode], paddings[padding],
    o.align_corners or false)
end

--- The grid of an affine map for grid_sample.
---@param theta nnscaler.Tensor [batch, 2, 3], or [batch, 3, 4] for three axes
---@param size integer[] shape of the result of grid_sample
---@param align_corners? boolean false
---@return nnscaler.Tensor
function M.affine_grid(theta, size, align_corners)
  return aten.affine_grid_generator(theta, size, align_corners or false)
end

return M
