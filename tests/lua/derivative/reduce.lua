--- Calls that test the derivatives of reductions, scans and orderings.
---@param add fun(names: string, ...: table)
---@param m table
return function(add, m)
  local f, t, pos, b, i, z = m.f, m.t, m.pos, m.b, m.i, m.z
  local A, B, C = m.A, m.B, m.C

  add('sum mean', { f(A, B) }, { f(A, B), { 0 } }, { f(A, B, C), { -1, 0 }, true },
    { f(A, B), { 1 }, true }, { f() }, { f(A, B), {} }, { f(0, B), { 1 } }, { f(A, 1, B), { 1 } },
    { f(A, B, C), { 0, 1, 2 } }, { m.f32(A, B), { 1 }, false, { dtype = 'float64' } })
  add('sum', { f(0, B) }, { f(0, B), { 0 } }, { z(A, B), { 0 } })
  add('var std', { f(A, B) }, { f(A, B), { 1 } }, { f(A, B), { 0 }, { correction = 0 } },
    { f(A, B, C), { 0, -1 }, { correction = 2, keepdim = true } }, { op = '*.dim', f(A, B), { 0 },
      false, true }, { f(A, B), false }, { f(0, B), { 1 } })
  add('std', { f(A, 1):expand { A, B }, { 1 } }, { t(A, 1) * 0, { 0 } })
  add('var_mean', { f(A, B), outputs = 2 }, { f(A, B), { 1 }, outputs = 2 },
    { f(A, B), { 0 }, { correction = 0, keepdim = true }, outputs = 2 },
    { f(A, B, C), { 0, -1 }, { correction = 1 }, outputs = 2 })
  add('amax amin', { f(A, B), { 0 } }, { t(A, B), { 1 }, true }, { t(A, B, C), { 0, 2 } },
    { t(A, B), {} }, { f() , {} }, { f(0, B), { 1 } })
  add('max min', { f(A, B) }, { t(A, B) }, { f() })
  for _, name in ipairs { 'max', 'min' } do
    add(name .. '.dim', { f(A, B), 0 }, { t(A, B), 1, true }, { f(A, B, C), -2 }, { f(), 0 },
      { f(0, B), 1 })
  end
  add('topk', { f(A, 5), 3 }, { f(5, B), 2, 0 }, { f(A, 5), 2, 1, false }, { f(), 1 },
    { f(A, 5), 5 })
  add('sort', { f(A, B) }, { f(A, B), 0, true }, { f(A, B, C), 1 }, { f() }, { f(0, B) },
    { op = 'sort.stable', t(A, B), { stable = true, dim = 1 } })
  add('logsumexp', { f(A, B), { 1 } }, { f(A, B), { 0, 1 }, true }, { t(A, B), { -2 } },
    { f(), { 0 } }, { f(0, B), { 1 } }, { f(A, B) * 300, { 1 } },
    { f(A, B):masked_fill(b(A, 1):logical_or(b(A, 1)), -math.huge), { 1 } })
  add('cumsum', { f(A, B), 0 }, { f(A, B), -1 }, { f(), 0 }, { f(0, B), 1 }, { f(A, B, C), 1 },
    { m.f32(A), 0, { dtype = 'float64' }, tolerance = 1e-6 })
  add('softmax log_softmax _safe_softmax', { f(A, B), 1 }, { f(A, B, C), 0 }, { f(), 0 },
    { f(0, B), 1 }, { f(A, B) * 300, -1 }, { m.f32(A, B), 1, 'float64' })
  add('_safe_softmax', { f(A, B):masked_fill(b(A, 1), -math.huge), 1 })
  add('_softmax _log_softmax', { f(A, B), 1, false }, { f(0, B), 0, false })
  add('norm', { f(A, B) }, { t(A, B) }, { f(A, B), 1 }, { f(A, B), 3 },
    { op = 'norm.ScalarOpt_dim', f(A, B), 2, { 1 }, true },
    { op = 'norm.ScalarOpt_dim', f(A, B), 1, { 0 } },
    { op = 'norm.ScalarOpt_dim', t(A, B), math.huge, { 0 } }, { t(A, B) * 0 })
  add('linalg_vector_norm', { f(A, B) }, { f(A, B), 2, { 1 } }, { t(A, B), 2, { 1 }, true },
    { f(A, B), 1 }, { f(A, B), 3, { 0 } }, { t(A, B), 3, { 0 } }, { f(A, B), 0 },
    { f(A, B), math.huge, { 1 } }, { t(A, B), math.huge, { 1 } }, { f(A, B), -math.huge, { 1 } },
    { f(A, B), 0.5, { 1 } }, { f(A, B), -1, { 1 } }, { f(A, B), 1.5 }, { t(A, B), 1.5, { 0 } },
    { f(0, B), 2, { 1 } }, { f() })
  add('any all', { f(A, B) }, { f(A, B), 1 })
  add('argmax argmin', { f(A, B) }, { f(A, B), 1 })
  local _ = { pos, i }
end
