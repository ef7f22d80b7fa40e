--- Example calls of operators that reshape, join, cut and make tensors.
---@param add fun(names: string, ...: table)
---@param m nnscaler.verify.Maker
return function(add, m)
  local f, i = m.f, m.i
  add('view _unsafe_view reshape', { f(4, 6), { 2, 2, 6 } }, { f(4, 6), { 24 } },
    { f(4, 6), { -1, 3 } },
    { f(4, 6), { 8, 3 } }, { f(6, 4), { 4, 6 } }, { f(1, 4, 1), { 4 } },
    { f(2, 4, 6), { 8, 1, 6 } })
  add('view_as reshape_as', { f(4, 6), f(2, 2, 6) })
  add('flatten', { f(2, 4, 6) }, { f(2, 4, 6), 1 }, { f(2, 4, 6), 0, 1 })
  add('ravel', { f(4, 6) })
  add('unflatten', { f(4, 6), 1, { 2, 3 } }, { f(4, 6), 0, { 2, -1 } })
  add('unsqueeze', { f(4, 6), 1 }, { f(4), -1 })
  add('squeeze', { f(1, 4, 1, 6) }, { f(1, 4, 1), 0 }, { f(4, 6), 0 },
    { op = 'squeeze.dims', f(1, 4, 1), { 0, 2 } })
  add('permute', { f(2, 4, 6), { 2, 0, 1 } })
  add('transpose swapaxes swapdims', { f(2, 4, 6), 0, -1 })
  add('t', { f(4, 6) }, { f(4) })
  add('mT mH adjoint', { f(2, 4, 6) })
  add('numpy_T', { f(4, 6) })
  add('movedim moveaxis', { f(2, 4, 6), 0, 2 }, { f(2, 4, 6), { 0, 1 }, { 2, 0 } })
  add('expand broadcast_to', { f(1, 4, 6), { 3, 4, 6 } }, { f(4, 1), { 2, 4, 6 } },
    { f(4, 6), { -1, 6 } })
  add('expand_as', { f(4, 1), f(2, 4, 6) })
  add('repeat tile', { f(4, 6), { 2, 1, 3 } }, { f(4, 6), { 1, 2 } })
  add('tile', { f(4, 6), { 2 } })
  add('repeat_interleave', { op = 'repeat_interleave.self_int', f(4, 6), 3 },
    { op = 'repeat_interleave.self_int', f(4, 6), 2, 1 })
  add('pad', { f(4, 6), { 1, 2 } }, { f(2, 4, 6), { 1, 0, 0, 3 }, 'constant', 1.5 })
  add('constant_pad_nd', { f(4, 6), { 1, 2 } }, { f(4, 6), { -1, 0, 2, 2 }, 3 })
  add('flip', { f(4, 6), { 1 } }, { f(4, 6), { 0, 1 } })
  add('roll', { f(4, 6), { 1 }, { 0 } }, { f(4, 6), { 3 } })
  add('tril triu', { f(4, 6) }, { f(2, 4, 4), 1 })
  add('linalg_inv inverse', { f(2, 4, 4), tolerance = 1e-9 })

  add('cat concat concatenate nnscaler::join', { { f(4, 6), f(2, 6) } },
    { { f(4, 6), f(4, 2) }, 1 })
  add('stack', { { f(4, 6), f(4, 6) } }, { { f(4, 6), f(4, 6), f(4, 6) }, -1 })
  add('split', { f(4, 6), 4, 1 }, { op = 'split.sizes', f(4, 6), { 1, 3 } })
  add('split_with_sizes', { f(4, 6), { 2, 4 }, 1 })
  add('chunk', { f(4, 6), 4, 1 }, { f(5, 6), 3 })
  add('tensor_split', { op = 'tensor_split.sections', f(4, 7), 3, 1 },
    { op = 'tensor_split.indices', f(4, 6), { 1, 4 }, 1 })
  add('unbind', { f(4, 6) }, { f(4, 6), 1 })
  add('select', { f(4, 6), 0, -1 }, { f(4, 6), 1, 2 })
  add('narrow', { f(4, 6), 1, 2, 3 }, { f(4, 6), 0, 0, 4 })
  add('slice', { f(4, 6), 1, 1, 5, 2 }, { n = 4, f(4, 6), 0, nil, nil },
    { n = 4, f(4, 6), 1, -3, nil })
  add('unfold', { f(4, 6), 1, 3, 2 })
  add('diagonal', { f(4, 6) }, { f(2, 4, 6), 1, 1, 2 })
  add('diag', { f(4) }, { f(4), -1 }, { f(4, 6), 1 })
  add('slice_backward', { f(4, 2), { 4, 6 }, 1, 1, 5, 2 })
  add('select_backward', { f(4), { 4, 6 }, 1, 2 })
  add('unfold_backward', { f(4, 2, 3), { 4, 6 }, 1, 3, 2 })
  add('diagonal_backward', { f(4), { 4, 6 }, 0, 0, 1 })

  add('zeros ones', { { 4, 6 } }, { { 4 }, { dtype = 'int64' } }, { {} })
  add('empty', { { 4, 6 }, types_only = true })
  add('full', { { 4, 6 }, 1.5 }, { { 4 }, 2 }, { { 4 }, true })
  add('rand randn', { { 4, 6 }, { generator = m.generator } })
  add('randint', { 5, { 4, 6 }, { generator = m.generator } })
  add('zeros_like ones_like', { f(4, 6) }, { i(9, 4), { dtype = 'float32' } })
  add('empty_like', { f(4, 6), types_only = true })
  add('full_like', { f(4, 6), 2 })
  add('rand_like randn_like', { f(4, 0), { generator = m.generator } })
  add('nnscaler::uniform_like nnscaler::normal_like',
    { f(4, 6), nil, 'fc:noise#0', 7, 3, 1, n = 6 })
  add('new_empty', { f(4, 6), { 2, 3 }, types_only = true })
  add('new_zeros new_ones', { f(4, 6), { 2, 3 } }, { f(4), { 2 }, { dtype = 'int64' } })
  add('new_full', { f(4, 6), { 2, 3 }, 1.5 })
  add('scalar_tensor', { 1.5 }, { 2, { dtype = 'int64' } })
  add('arange', { 5 }, { 1, 7, 2 }, { op = 'arange.start', 2, 7 }, { 0.5, 2, 0.4 })
  add('linspace', { 0, 1, 5 })
  add('eye', { 4 }, { op = 'eye.m', 4, 6 })
end
