--- Calls that test the derivatives of convolutions and pooling.
---@param add fun(names: string, ...: table)
---@param m table
return function(add, m)
  local f, t = m.f, m.t
  local A = m.A
  add('conv1d', { f(2, 4, 9), f(6, 4, 3) },
    { f(2, 4, 9), f(6, 2, 3), f(6), { 2 }, { 1 }, { 1 }, 2 },
    { f(4, 9), f(6, 4, 3), f(6) },
    { op = 'conv1d.padding', n = 5, f(2, 4, 9), f(6, 4, 3), nil, { 1 }, 'valid' })
  add('conv2d', { f(2, 4, 8, 9), f(6, 4, 3, 3) },
    { f(2, 4, 8, 9), f(6, 4, 3, 3), f(6), { 2, 1 }, { 1, 0 } },
    { n = 7, f(2, 4, 8, 9), f(6, 2, 3, 3), nil, { 1, 1 }, { 0, 0 }, { 2, 1 }, 2 },
    { f(4, 8, 8), f(6, 4, 3, 3) }, { f(2, A, 4, 4), f(A, 1, 3, 3), f(A), 1, 1, 1, A },
    { op = 'conv2d.padding', n = 5, f(2, 4, 8, 9), f(6, 4, 3, 3), nil, { 1, 1 }, 'same' },
    { op = 'conv2d.padding', n = 6, f(2, 4, 8, 9), f(6, 4, 2, 3), nil, { 1, 1 }, 'same', { 1, 2 } },
    { f(0, 4, 8, 9), f(6, 4, 3, 3), f(6) })
  add('conv3d', { f(2, 4, 4, 5, 6), f(6, 4, 2, 2, 2), f(6) })
  add('conv_transpose1d', { f(2, 4, 5), f(4, 6, 3) }, { f(4, 5), f(4, 6, 3), f(6), { 2 } })
  add('conv_transpose2d', { f(2, 4, 5, 5), f(4, 6, 3, 3), f(6), { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { n = 7, f(2, 4, 5, 5), f(4, 3, 3, 3), nil, { 1, 1 }, { 0, 0 }, { 0, 0 }, 2 })
  add('conv_transpose3d', { f(2, 4, 3, 3, 3), f(4, 6, 2, 2, 2), f(6) })
  local none, one = { 0, 0 }, { 1, 1 }
  add('convolution', { n = 9, f(2, 4, 8, 8), f(6, 4, 3, 3), nil, one, one, one, false, none, 1 },
    { n = 9, f(2, 4, 5, 5), f(4, 6, 3, 3), f(6), one, none, one, true, none, 1 })
  add('max_pool2d', { f(2, 4, 5, 7), { 2, 2 } }, { t(2, 4, 5, 7), { 2 } },
    { f(2, 4, 5, 7), { 3, 2 }, { 2, 2 }, { 1, 0 }, { 1, 1 }, true },
    { f(4, 5, 7), { 2, 3 }, { 1 } },
    { f(2, 4, 7, 7), { 2 }, { 1 }, { 0 }, { 2 } })
  add('avg_pool2d', { f(2, 4, 5, 7), { 2, 2 } }, { f(2, 4, 5, 7), { 3 } },
    { f(2, 4, 5, 7), { 3, 3 }, { 2, 2 }, { 1, 1 }, true }, { f(4, 5, 7), { 2, 3 }, { 1 } },
    { f(2, 4, 5, 7), { 3, 3 }, { 2, 2 }, { 1, 1 }, false, false },
    { f(2, 4, 5, 7), { 2, 2 }, { 2, 2 }, { 0, 0 }, false, true, 3 })
  add('adaptive_avg_pool2d', { f(2, 4, 5, 7), { 2, 3 } }, { f(2, 4, 5, 7), { 1, 1 } },
    { f(4, 5, 7), { 2, 2 } }, { f(2, 4, 6, 6), { 6, 6 } })
  add('_adaptive_avg_pool2d', { f(2, 4, 5, 7), { 2, 3 } }, { f(4, 5, 7), { 5, 7 } })
end
