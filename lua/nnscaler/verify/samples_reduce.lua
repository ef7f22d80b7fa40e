--- Example calls of reductions, scans, sorting and the softmax family.
---@param add fun(names: string, ...: table)
---@param m nnscaler.verify.Maker
return function(add, m)
  local f, pos, i, b = m.f, m.pos, m.i, m.b
  add('sum', { f(4, 6) }, { f(4, 6), { 0 } }, { f(4, 6, 2), { -1, 0 }, true }, { b(4, 6), { 1 } },
    { i(9, 4) }, { f(4, 6), { 1 }, false, { dtype = 'float32' }, tolerance = 1e-5 })
  add('nansum', { f(4, 6), { 0 } })
  add('prod', { f(4, 6) }, { f(4, 6), 0 }, { i(9, 4, 6), 1, true })
  add('mean nanmean', { f(4, 6) }, { f(4, 6), { 1 }, true })
  add('amax amin', { f(4, 6), { 0 } }, { f(4, 6), { 0, 1 }, true }, { i(9, 4), {} })
  add('max min median', { f(4, 6) })
  add('max.dim', { op = 'max.dim', f(4, 6), 1 }, { op = 'max.dim', f(4, 6), 0, true })
  add('min.dim', { op = 'min.dim', f(4, 6), 1 }, { op = 'min.dim', f(4, 6), 0, true })
  add('median.dim', { op = 'median.dim', f(4, 6), 1 })
  add('argmax argmin', { f(4, 6) }, { f(4, 6), 1 }, { f(4, 6), 0, true })
  add('any all', { b(4, 6) }, { b(4, 6), 1 }, { i(2, 4, 6), 0, true })
  add('count_nonzero', { b(4, 6) }, { i(2, 4, 6), 1 })
  add('norm', { f(4, 6) }, { op = 'norm.ScalarOpt_dim', f(4, 6), 2, { 1 }, true })
  add('linalg_vector_norm', { f(4, 6) }, { f(4, 6), 2, { 1 } })
  add('logsumexp', { f(4, 6), { 1 } }, { f(4, 6), { 0, 1 }, true })
  add('var std var_mean std_mean', { f(4, 6), { 1 } }, { f(4, 6) },
    { f(4, 6), { 0 }, { correction = 0, keepdim = true } })

  add('cumsum cumprod', { f(4, 6), 1 }, { i(9, 4), 0 }, { b(4, 6), -1 })
  add('softmax log_softmax _safe_softmax', { f(4, 6), 1 }, { f(2, 4, 6), 0 })
  add('_softmax _log_softmax', { f(4, 6), 1, false })
  add('_softmax_backward_data _log_softmax_backward_data', { f(4, 6), pos(4, 6), 1, 'float64' })
  add('sort argsort', { f(4, 6) }, { f(4, 6), 0, true })
  add('topk', { f(4, 6), 3 }, { f(4, 6), 2, 0 })
  add('diff', { f(4, 6) }, { n = 4, f(4, 6), 1, 0, f(2, 6) })
  add('histc', { f(24), 5, -2, 2 })
end
