--- Calls that test the derivatives of operators that move elements.
---@param add fun(names: string, ...: table)
---@param m table
return function(add, m)
  local f, z = m.f, m.z
  local A, B = m.A, m.B
  -- view takes no transposed operand.
  local forms = { 'dense', 'expanded', 'turned', 'cut' }
  add('view _unsafe_view', { f(A, B), { B * A }, forms = forms },
    { f(A, B), { -1, 1, A }, forms = forms })
  add('view_as', { f(A, B), f(B, A), fixed = { 2 }, forms = forms })
  add('reshape', { f(A, B), { B * A } }, { f(A, B), { -1, 1, A } },
    { f(0, B), { B, 0 } }, { f(), { 1, 1 } }, { f(1), {} }, { z(A, B), { A * B } })
  add('reshape_as', { f(A, B), f(B, A), fixed = { 2 } })
  add('flatten', { f(2, A, B) }, { f(2, A, B), 1 }, { f(2, A, B), 0, 1 }, { f() },
    { f(0, A, B), 1 })
  add('unflatten', { f(A, 6), 1, { 2, 3 } }, { f(6, B), 0, { 2, -1 } })
  add('unsqueeze', { f(A, B), 1 }, { f(A), -1 }, { f(), 0 }, { f(0, B), 0 })
  add('squeeze', { f(1, A, 1, B) }, { f(1, A, 1), 0 }, { f(A, B), 0 },
    { op = 'squeeze.dims', f(1, A, 1), { 0, 2 } }, { f(1) }, { f(1, 0) })
  add('expand broadcast_to', { f(1, A, B), { 3, A, B } }, { f(A, 1), { 2, A, B } },
    { f(A, B), { -1, B } }, { f(), { A, B } }, { f(1, B), { 0, B } }, { f(A, 1), { A, 1 } })
  add('broadcast_tensors', { { f(A, B), f(B) } }, { { f(A, B), f(A, B) } },
    { { f(1, B), f(A, 1), f() } })
  add('expand_as', { f(A, 1), f(2, A, B), fixed = { 2 } })
  add('permute', { f(2, A, B), { 2, 0, 1 } }, { f(2, A, B), { -1, 1, 0 } }, { f(), {} },
    { f(0, A), { 1, 0 } }, { z(A, B), { 1, 0 } })
  add('transpose swapaxes', { f(2, A, B), 0, -1 }, { f(A, B), 1, 1 }, { f(), 0, 0 },
    { f(A), 0, -1 },
    { f(A, 0), 0, 1 })
  add('movedim', { f(2, A, B), 0, 2 }, { f(2, A, B), { 0, 1 }, { 2, 0 } }, { f(2, A, B), -1, 0 })
  add('t', { f(A, B) }, { f(A) }, { f() }, { f(0, B) })
  add('mT', { f(2, A, B) }, { f(A, B) })
  add('repeat', { f(A, B), { 2, 1, 3 } }, { f(A, B), { 1, 2 } }, { f(A), { 0 } }, { f(), { 3 } },
    { f(0, B), { 2, 2 } }, { f(A), { 2, 0 } })
  add('repeat_interleave', { op = '*.self_int', f(A, B), 3 }, { op = '*.self_int', f(A, B), 2, 1 },
    { op = '*.self_int', f(A, B), 2, -2 },
    { op = '*.self_int', f(A), 0 }, { op = '*.self_int', f(0, B), 2, 1 })
  add('cat', { { f(A, B), f(2, B) } }, { { f(A, B), f(A, 2), f(A, 1) }, -1 },
    { { f(A, B), f(0) } }, { { f(A), f(0) } }, { { f(A, B) } }, { { f(A, 0), f(A, B) }, 1 },
    { { m.f32(A), f(A) } }, { { f(A), m.i(3, A) } }, { { z(A), f(A) } })
  add('stack', { { f(A, B), f(A, B) } }, { { f(A), f(A), f(A) }, -1 }, { { f(), f() } },
    { { f(0, B), f(0, B) }, 1 })
  add('split', { f(5, B), 2, outputs = 3 }, { f(A, 6), 4, 1, outputs = 2 }, { f(A, 6), 6, -1 },
    { op = 'split.sizes', f(A, 6), { 1, 0, 5 }, 1, outputs = 3 })
  add('split_with_sizes', { f(A, 6), { 2, 4 }, 1, outputs = 2 },
    { f(6, B), { 1, 2, 3 }, outputs = 3 },
    { f(A, 6), { 2, 0, 4 }, -1, outputs = 3 })
  add('chunk', { f(A, 6), 3, 1, outputs = 3 }, { f(5, B), 3, outputs = 2 }, { f(A, 5), 4, -1 })
  add('unbind', { f(3, B), outputs = 3 }, { f(A, 2), 1, outputs = 2 }, { f(A, 2, B), -2 })
  add('slice', { f(A, 6), 1, 1, 5, 2 }, { n = 4, f(A, B), 0, nil, nil },
    { n = 4, f(A, 6), 1, -3, nil }, { f(A, 6), 1, 4, 2 }, { f(A, 6), -1, 0, 100 },
    { n = 4, f(A, 6), 1, nil, -2 }, { f(A, 6), 1, -100, 3, 3 }, { f(0, B), 0, 0, 1 })
  add('narrow', { f(A, 6), 1, 2, 3 }, { f(6, B), 0, -4, 2 }, { f(A, 6), 1, 3, 0 })
  add('select', { f(A, B), 0, -1 }, { f(A, 3, B), 1, 2 }, { f(A), 0, 0 }, { f(A, B), -1, -2 })
  add('slice_scatter', { f(A, 6), f(A, 2), 1, 1, 5, 2 }, { f(6, B), f(2, B), 0, -2 },
    { n = 5, f(A, 6), f(A, 6), 1, nil, nil })
  add('select_scatter', { f(A, 4), f(A), 1, 2 }, { f(A, B), f(B), 0, -1 })
  add('diag', { f(A) }, { f(A), -1 }, { f(A, B), 1 }, { f(4, 4), -2 }, { f(0) })
  add('diagonal', { f(A, B) }, { f(2, A, B), 1, 1, 2 }, { f(4, 4, B), -1, 0, 1 },
    { f(3, 2, 3), 0, -1, 0 })
  add('triu tril', { f(A, B) }, { f(2, 4, 4), 1 }, { f(4, 4), -2 }, { f(0, 3) })
  add('flip', { f(A, B), { 1 } }, { f(A, B), { 0, -1 } }, { f(A), {} }, { f(0, B), { 0 } })
  add('roll', { f(A, B), { 1 }, { 0 } }, { f(A, B), { 3 } }, { f(A, B), { 2, -1 }, { 0, 1 } },
    { f(0, B), { 1 }, { 0 } }, { f(A, B), { 7 }, { -1 } })
  add('pad', { f(A, B), { 1, 2 } }, { f(2, A, B), { 1, 0, 0, 3 }, 'constant', 1.5 },
    { f(A, 6), { -1, 2 } }, { f(2, A, 5), { 1, 2 }, 'reflect', fallback = true },
    { f(2, A, 5), { 1, 2 }, 'replicate', fallback = true },
    { f(2, A, 5), { 1, 2 }, 'circular', fallback = true })
  add('constant_pad_nd', { f(A, B), { 1, 2 } }, { f(4, 6), { -1, 0, 2, -1 }, 3 },
    { f(0, B), { 1, 1 } },
    { f(A, B), { 0, 0 } })
  add('unfold', { f(A, 6), 1, 3, 2 }, { f(6, B), 0, 2, 1 }, { f(A, 6), -1, 6, 1 },
    { f(A, 6), 1, 2, 3 })
end
