--- Discrete Fourier transforms, as torch.fft: `nnscaler.fft.rfft(x)`. Arguments in PyTorch's order:
--- transforms of one dimension take (input, n, dim, norm), of two or more (input, s, dim, norm).
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'

local M = {}

local norms = { forward = true, backward = true, ortho = true }

local function check(name, norm)
  if norm ~= nil and not norms[norm] then
    fail('model', 'fft.' .. name, ("norm '%s'; expected backward, forward or ortho"):format(
      tostring(norm)))
  end
end

-- A transform along one dimension: n elements of it, by default all, of the last dimension.
local function along(name)
  local call = aten['fft_' .. name]
  return function(input, n, dim, norm)
    check(name, norm)
    return call(input, n, dim or -1, norm)
  end
end

-- A transform along several: `s` elements of each, by default all.
local function over(name, dims)
  local call = aten['fft_' .. name]
  return function(input, s, dim, norm)
    check(name, norm)
    return call(input, s, dim or dims, norm)
  end
end

--- Of complex numbers, and back.
---@alias nnscaler.Fourier fun(input, n?: integer, dim?: integer, norm?: string): any
---@type nnscaler.Fourier
M.fft, M.ifft = along 'fft', along 'ifft'
--- Of real numbers to the half of the spectrum that tells all, and back.
---@type nnscaler.Fourier
M.rfft, M.irfft = along 'rfft', along 'irfft'
--- Of half a signal that is symmetric in time, and back.
---@type nnscaler.Fourier
M.hfft, M.ihfft = along 'hfft', along 'ihfft'

--- The same over the last two dimensions, or those given.
---@alias nnscaler.FourierOver fun(input, s?: integer[], dim?: integer[], norm?: string): any
---@type nnscaler.FourierOver
M.fft2, M.ifft2 = over('fft2', { -2, -1 }), over('ifft2', { -2, -1 })
---@type nnscaler.FourierOver
M.rfft2, M.irfft2 = over('rfft2', { -2, -1 }), over('irfft2', { -2, -1 })
--- Over all dimensions, or those given.
---@type nnscaler.FourierOver
M.fftn, M.ifftn, M.rfftn, M.irfftn = over 'fftn', over 'ifftn', over 'rfftn', over 'irfftn'

--- Moves the zero frequency to the middle of each dimension, or of those given.
---@param input nnscaler.Tensor
---@param dim? integer[]
---@return nnscaler.Tensor
function M.fftshift(input, dim) return aten.fft_fftshift(input, dim) end

--- And back.
---@param input nnscaler.Tensor
---@param dim? integer[]
---@return nnscaler.Tensor
function M.ifftshift(input, dim) return aten.fft_ifftshift(input, dim) end

local function frequencies(name, n, d, options)
  local call = aten['fft_' .. name]
  if options then return call(n, d or 1, options) end
  return call(n, d or 1)
end

--- The frequencies of a transform of n samples that lie `d` apart.
---@param n integer
---@param d? number 1
---@param options? { dtype?: string, device?: string }
---@return nnscaler.Tensor
function M.fftfreq(n, d, options) return frequencies('fftfreq', n, d, options) end

--- Those of rfft.
---@param n integer
---@param d? number 1
---@param options? { dtype?: string, device?: string }
---@return nnscaler.Tensor
function M.rfftfreq(n, d, options) return frequencies('rfftfreq', n, d, options) end

return M
