--- Fourier transforms against closed forms and against each other.
local T = require 'nnscaler.tensor'
local fft = require 'nnscaler.fft'
local message = require 'tests.lua.support.message'

local x = T.randn({ 3, 8, 6 }, { dtype = 'float64', generator = T.generator(1) })

local function same(a, b) assert.is_true((a - b):abs():max():item() < 1e-13) end

describe('a Fourier transform', function()
  it('of a wave has one line', function()
    local steps = T.arange(8, { dtype = 'float64' })
    local lines = fft.rfft((steps * (2 * math.pi * 3 / 8)):cos()):abs()
    same(lines, T.tensor({ 0, 0, 0, 4, 0 }, { dtype = 'float64' }))
  end)

  it('is undone by its inverse', function()
    same(fft.irfft(fft.rfft(x, nil, 1), nil, 1), x)
    same(T.view_as_real(fft.ifft(fft.fft(x)))[{ '...', 0 }], x)
    same(fft.irfft2(fft.rfft2(x)), x)
    same(T.view_as_real(fft.ifft2(fft.fft2(x, nil, { 0, 1 }), nil, { 0, 1 }))[{ '...', 0 }], x)
    same(fft.irfftn(fft.rfftn(x)), x)
    same(T.view_as_real(fft.ifftn(fft.fftn(x)))[{ '...', 0 }], x)
    same(fft.hfft(fft.ihfft(x)), x)
    same(fft.ifftshift(fft.fftshift(x, { 1 }), { 1 }), x)
  end)

  it('keeps the sum of squares when it is orthonormal', function()
    same(fft.fftn(x, nil, nil, 'ortho'):abs():square():sum(), x:square():sum())
    same(fft.fft(x, nil, nil, 'forward') * 6, fft.fft(x))
  end)

  it('of fewer or more elements cuts, or adds zeros', function()
    assert.same({ 3, 8, 4 }, fft.rfft(x, 7).shape)
    same(fft.rfft(x, 4):abs(), fft.rfft(x[{ '...', '0:4' }]):abs())
  end)

  it('knows its frequencies', function()
    assert.same({ 0, 0.25, -0.5, -0.25 }, fft.fftfreq(4):tolist())
    assert.same({ 0, 0.5, 1 }, fft.rfftfreq(4, 0.5):tolist())
  end)

  it('refuses another norm', function()
    assert.matches("%[fft.rfft2%] norm 'unit'; expected backward, forward or ortho",
      message(fft.rfft2, x, nil, nil, 'unit'))
  end)
end)
