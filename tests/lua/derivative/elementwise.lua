--- Calls that test the derivatives of element-wise operators. `t` makes ties and kinks.
---@param add fun(names: string, ...: table)
---@param m table
return function(add, m)
  local T = require 'nnscaler.tensor'
  local f, t, pos, b, z = m.f, m.t, m.pos, m.b, m.z
  local A, B = m.A, m.B
  local inf, nan = math.huge, 0 / 0
  local function odd() return T.tensor({ 0, 1, -1, inf, -inf, nan }, { dtype = 'float64' }) end

  add('relu relu6 gelu silu mish sigmoid tanh log_sigmoid softplus elu celu selu leaky_relu '
    .. 'hardtanh hardswish hardsigmoid sin cos tan sinh cosh asinh atan erf erfc exp exp2 expm1 '
    .. 'neg '
    .. 'abs square sign sgn ceil floor round trunc nan_to_num clone alias contiguous detach',
    { f(A, B) * 3 }, { t(A, B) }, { f() }, { f(0, B) }, { f(A, 1, B) * 8 })
  add('sqrt rsqrt reciprocal log log2 log10 log1p', { pos(A, B) }, { pos() }, { pos(0, B) },
    { pos(A, B) * 20 })
  add('sqrt', { t(A, B):abs() })
  add('asin acos atanh', { pos(A, B) - 0.5 }, { pos() }, { pos(0, B) })
  add('acosh', { pos(A, B) + 1.1 }, { pos(0, B) + 1 })
  add('relu6', { t(A, B) * 6 })
  add('hardswish hardsigmoid', { t(A, B) * 3 })
  add('gelu', { f(A, B), { approximate = 'tanh' } }, { m.f32(A, B), tolerance = 1e-5 },
    { m.f32(A, B), { approximate = 'tanh' }, tolerance = 1e-5 })
  local gelu = require('nnscaler.ops').aten.gelu
  add('nnscaler::gelu', { f(A, B), reference = gelu },
    { f(A, B), { approximate = 'tanh' }, reference = gelu },
    { m.f32(A, B), tolerance = 1e-5, reference = gelu })
  local own = {}
  function own.swiglu(gate, up) return gate * gate:sigmoid() * up end
  function own.rope(x, cos, sin)
    local left, right = unpack(x:chunk(2, -1))
    return x * cos + T.cat({ -right, left }, -1) * sin
  end
  add('nnscaler::swiglu', { f(A, B), f(A, B), reference = own.swiglu },
    { f(0, B), f(0, B), reference = own.swiglu },
    { m.f32(A, B), m.f32(A, B), tolerance = 1e-5, reference = own.swiglu })
  add('nnscaler::rope', { f(2, A, 6), f(A, 6), f(A, 6), reference = own.rope },
    { m.f32(2, 3, A, 6), m.f32(A, 6), m.f32(A, 6), tolerance = 1e-5, reference = own.rope })
  add('softplus', { f(A, B), 2, 0.5 }, { f(A, B) * 30 })
  add('elu', { f(A, B), 0.5, 2, 1.5 }, { t(A, B), 2 })
  add('celu', { f(A, B), 0.7, tolerance = 1e-7 }, { t(A, B), 2 }) -- autograd rounds alpha
  add('leaky_relu', { f(A, B), 0.2 }, { t(A, B), 0 }, { f(A, B), -0.5 })
  add('hardtanh', { f(A, B), -0.5, 0.25 }, { t(A, B), 0, 1 })
  add('glu', { f(A, 6) }, { f(4, B), 0 }, { f(0, 6) }, { f(2, 4, B), -2 })
  add('prelu', { f(2, A, B), f(A) }, { f(2, A), f(1) }, { t(2, A), t(A) }, { f(0, A), f(A) },
    { f(A), f(1) }, { f(2, A), f() }, { f(), f() })
  add('nan_to_num', { odd() }, { n = 3, odd(), 1, 2 })
  add('abs neg square reciprocal exp log sin cos sgn clone', { z(A, B) })
  add('round', { op = 'round.decimals', f(A, B), { decimals = 1 } })

  add('add sub mul', { f(A, B), f(A, B) }, { f(A, B), f(B) }, { f(2, 1, B), f(A, 1) },
    { f(A), 2.5 },
    { f(), f(A, B) }, { f(0, B), f(B) }, { f(0, B), f(1, B) }, { f(A, B), m.i(5, B) },
    { z(A, B), z(B) }, { z(A, B), f(B) }, { f(A, B), z(1, B) },
    { f(A), m.f32(A) }, { m.f32(A), f() })
  add('add mul', { f(A, B), b(A, B) })
  add('add sub', { f(A, B), f(B), { alpha = 3 } }, { f(A), 2, { alpha = -2 } })
  add('rsub', { f(A, B), f(B) }, { f(A), 2 }, { f(A), f(A), { alpha = 2 } },
    { f(A), 3, { alpha = -2 } })
  add('div', { f(A, B), pos(A, B) }, { f(A, B), pos(B) }, { f(2, 1, B), pos(A, 1) }, { f(A), 2.5 },
    { f(A), 3 }, { f(), pos(A, B) }, { f(0, B), pos(B) }, { f(A, B), m.i(5, B) + 1 },
    { m.i(5, A, B), pos(B) }, { z(A, B), z(B) }, { z(A, B), pos(B) },
    { f(A), pos(A), { rounding_mode = 'floor' } }, { f(A), pos(A), { rounding_mode = 'trunc' } },
    { f(A), 2, { rounding_mode = 'floor' } })
  add('pow', { f(A, B), 2 }, { f(A, B), 3 }, { pos(A, B), 0.5 }, { pos(A), -1.5 }, { t(A, B), 2 },
    { f(A, B), 0 }, { f(A, B), 1 }, { pos(A, B), f(A, B) }, { pos(A, B), f(B) },
    { pos(2, 1, B), f(A, 1) }, { pos(A), t(A) }, { t(A, B):abs(), t(A, B):abs() },
    { op = 'pow.Scalar', 2.5, f(A, B) }, { op = 'pow.Scalar', 0, t(A, B):abs() },
    { op = 'pow.Scalar', 1, f(A) }, { f(0, B), 2 }, { pos(0, B), f(B) }, { z(A, B), 3 })
  add('maximum minimum', { f(A, B), f(B) }, { t(A, B), t(A, B) }, { t(2, 1, B), t(A, 1) },
    { f(0, B), f(B) }, { f(), t(A) })
  add('max.other', { t(A, B), t(B) }, { f(0, B), f(B) })
  add('min.other', { t(A, B), t(B) }, { f(0, B), f(B) })
  add('remainder fmod', { f(A, B) * 5, pos(A, B) }, { f(A, B) * 5, f(B) }, { f(A), 0.7 },
    { f(2, 1, B), f(A, 1) }, { f(0, B), f(B) })
  add('atan2', { f(A, B), f(A, B) }, { f(2, 1, B), f(A, 1) }, { t(A, B), t(A, B) },
    { f(0, B), f(B) })
  add('logaddexp', { f(A, B), f(B) }, { f(2, 1, B), f(A, 1) }, { t(A), t(A) }, { f(0, B), f(B) })

  add('where', { b(A, B), f(A, B), f(B) }, { b(B), f(A, 1), f(2, A, B) }, { b(A, B), f(A, B), 0 },
    { b(A), 1.5, f(A) }, { b(A, 1), f(B), f() }, { b(0, B), f(B), f(0, B) }, { b(), f(), f() })
  add('clamp', { f(A, B), -0.5, 0.5 }, { n = 3, f(A), nil, 0.5 }, { f(A), -0.5 },
    { t(A, B), -1, 1 },
    { f(A, B), 0.5, -0.5 }, { f(A, B), f(B), f(A, B) + 1 }, { n = 3, f(A, B), nil, f(B) },
    { t(A, B), t(B), t(A, B) }, { t(2, A, B), t(B), t(A, 1) }, { n = 2, f(A, B), f(A, 1) },
    { f(0, B), f(B), f(B) })
  add('clamp_min clamp_max', { f(A, B), 0.1 }, { t(A, B), 0 }, { f(A, B), f(B) },
    { t(A, B), t(A, B) }, { f(2, 1, B), f(A, 1) })
  add('masked_fill', { f(A, B), b(A, B), 2.5 }, { f(A, B), b(B), T.scalar(1.5, 'float64') },
    { f(A, 1), b(A, B), f() }, { f(0, B), b(B), 1 }, { f(B), b(A, B), 0 })
  add('fill', { op = 'fill.Scalar', f(A, B), 1.5 }, { op = 'fill.Scalar', f(0), 1 })
  add('fill', { op = 'fill.Tensor', f(A, B), f() })
  add('lerp', { f(A, B), f(A, B), 0.3 }, { f(A, B), f(B), 0.8 }, { f(A, B), f(B), pos(A, 1) },
    { f(2, 1, B), f(A, 1), pos(B) }, { f(0, B), f(0, B), pos(B) }, { f(A), f(A), 0 })
  add('addcmul addcdiv', { f(A, B), f(A, B), pos(B) }, { f(A), f(A), pos(A), { value = 2.5 } },
    { f(B), f(2, 1, B), pos(A, 1) }, { f(A), f(), pos(A) }, { f(0, B), f(B), pos(0, B) })

  add('to', { op = 'to.dtype', f(A, B), 'float32', tolerance = 1e-6 },
    { op = 'to.dtype', m.f32(A, B), 'float64' }, { op = 'to.dtype', f(A), 'float64' },
    { f(A), m.f32(2), fixed = { 2 }, tolerance = 1e-6 }, { op = 'to.dtype', f(A), 'int64' })
  add('type_as', { m.f32(A, B), f(2), fixed = { 2 } }, { f(A), f(2), fixed = { 2 } })
  add('_to_copy', { m.f32(A, B), { dtype = 'float64' } }, { f(A) }, { f(0, B) })
  -- view_as_complex takes dense pairs only.
  local forms = { 'dense', 'expanded', 'turned', 'cut' }
  add('view_as_complex', { f(A, B, 2), forms = forms }, { f(2) })
  add('view_as_real', { z(A, B) }, { z() }, { z(A, 1, B) })
  add('polar', { pos(A, B), f(A, B) }, { pos(), f() })
end
