--- Example calls of element-wise operators.
---@param add fun(names: string, ...: table)
---@param m nnscaler.verify.Maker
return function(add, m)
  local f, f32, pos, i, b = m.f, m.f32, m.pos, m.i, m.b
  local T = require 'nnscaler.tensor'
  local function complex(...) return T.complex(f(...), f(...)) end

  add('neg sign sgn square positive nan_to_num relu relu6 hardtanh', { f(4, 6) }, { i(9, 4) },
    { f32() })
  add('ceil floor round trunc frac', { f(4, 6) })
  add('conj_physical real imag angle', { complex(4, 6) })
  add('bitwise_not', { i(9, 4, 6) }, { b(4) })
  add('threshold', { f(4, 6), 0.1, -1 })
  add('exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sigmoid asinh sinh cosh erf '
    .. 'erfc reciprocal digamma lgamma atan', { pos(4, 6) }, { i(9, 4) + 1 }, { pos() })
  add('asin acos atanh logit', { pos(4, 6) })
  add('acosh', { pos(4, 6) + 1 })
  add('gelu nnscaler::gelu', { f(4, 6) }, { f(4, 6), { approximate = 'tanh' } })
  add('silu mish elu selu celu leaky_relu softplus softshrink hardshrink hardswish hardsigmoid '
    .. 'log_sigmoid', { f(4, 6) }, { f32(3) })
  add('abs', { f(4, 6) }, { complex(4, 6) }, { i(9, 4) })
  add('isnan isinf isfinite logical_not', { f(4, 6) }, { i(2, 4) })
  add('glu', { f(4, 6) }, { f(4, 6), 0 })
  add('prelu', { f(2, 4, 6), f(4) }, { f(2, 4), f(1) })
  add('dropout', { f(4, 6), 0.5, false })
  add('bernoulli', { T.ones({ 4, 6 }, { dtype = 'float64' }), { generator = m.generator } })
  add('nnscaler::bernoulli', { pos(4, 6), 'fc:bernoulli#0', 7, 3, 1 })
  add('bernoulli.p', { pos(4, 6), 0.5, { generator = m.generator } })
  add('nnscaler::dropout nnscaler::dropout_mask', { f(4, 6), 0.5, 'fc:dropout#0', 7, 3, 1 })
  add('native_dropout', { f(4, 6), 0.5, false })

  add('add sub mul maximum minimum fmod remainder logaddexp atan2', { f(4, 6), f(4, 6) },
    { f(4, 6), f(6) }, { f(2, 1, 6), f(4, 1) }, { f(4), f32() })
  add('add sub mul', { i(9, 4), 2 }, { i(9, 4), 1.5 }, { f(4), 2 },
    { i(9, 4), T.scalar(2.5, 'float64') })
  add('add mul', { i(9, 4), b(4) }, { b(4), b(4) }, { b(4), true })
  add('rsub', { f(4, 6), f(6) }, { f(4), 2 })
  add('max.other', { op = 'max.other', f(4, 6), f(6) })
  add('min.other', { op = 'min.other', f(4, 6), f(6) })
  add('floor_divide', { i(9, 4), 2 }, { f(4, 6), pos(6) })
  add('pow', { pos(4, 6), 2 }, { pos(4, 6), f(6) }, { i(9, 4), 2 }, { op = 'pow.Scalar', 2, f(4) })
  add('bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__', { b(4, 6), b(6) },
    { i(9, 4), 3 })
  add('div divide true_divide', { f(4, 6), pos(6) }, { i(9, 4), 2 }, { f(4), 2 })
  add('div divide', { i(9, 4), 2, { rounding_mode = 'floor' } })
  add('eq ne lt le gt ge', { i(3, 4, 6), i(3, 6) }, { f(4), 0 }, { f(4), f32(4) })
  add('logical_and logical_or logical_xor', { b(4, 6), b(6) }, { i(2, 4), i(2, 4) })
  add('where', { b(4, 6), f(4, 6), f(6) }, { b(4, 6), f(4, 6), 0 }, { b(4), 1.5, f32(4) })
  add('clamp clip', { f(4, 6), -0.5, 0.5 }, { n = 3, f(4), nil, 0.5 }, { i(9, 4), 1, 5.5 },
    { f(4, 6), f(6), f(4, 6) + 3 })
  add('clamp_min clamp_max', { f(4, 6), 0.1 }, { f(4, 6), f(6) })
  add('masked_fill', { f(4, 6), b(4, 6), 0 }, { f(4, 6), b(6), T.scalar(1.5, 'float64') })
  add('lerp', { f(4, 6), f(4, 6), 0.3 }, { f(4, 6), f(6), pos(4, 6) })
  add('addcmul addcdiv', { f(4, 6), f(4, 6), pos(6) }, { f(4), f(4), pos(4), { value = 2 } })
  add('copy', { f(4, 6), f(6) }, { f(4), f32(4) })
  add('fill', { f(4, 6), 1.5 }, { f(4), T.scalar(2) })
  add('zero', { f(4, 6) })

  add('clone contiguous alias lift_fresh lift_fresh_copy detach', { f(4, 6) })
  add('to', { f(4, 6), 'float32' }, { op = 'to.dtype', i(9, 4), 'float64' }, { f(4), f32(2) })
  add('type_as', { f(4, 6), f32(2) })
  add('_to_copy', { f(4, 6), { dtype = 'float32' } }, { f(4) })
  add('view_as_real', { complex(4, 6) })
  add('view_as_complex', { f(4, 6, 2) })
  add('polar complex', { pos(4, 6), pos(4, 6) })

  add('threshold_backward', { f(4, 6), f(4, 6), 0 })
  add('gelu_backward nnscaler::gelu_backward',
    { f(4, 6), f(4, 6) }, { f(4, 6), f(4, 6), { approximate = 'tanh' } })
  add('silu_backward hardswish_backward hardsigmoid_backward mish_backward', { f(4, 6), f(4, 6) })
  add('sigmoid_backward tanh_backward', { f(4, 6), pos(4, 6) })
  add('logit_backward', { f(4, 6), pos(4, 6) })
  add('elu_backward', { f(4, 6), 1, 1, 1, false, f(4, 6) })
  add('leaky_relu_backward', { f(4, 6), f(4, 6), 0.1, false })
  add('softplus_backward', { f(4, 6), f(4, 6), 1, 20 })
  add('hardtanh_backward', { f(4, 6), f(4, 6), -1, 1 })
  add('glu_backward', { f(4, 3), f(4, 6), 1 })
  add('native_dropout_backward', { f(4, 6), b(4, 6), 2 })
end
