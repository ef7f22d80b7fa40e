--- Calls that test the derivatives of convolutions, pooling, resampling and windows taken apart.
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
  add('max_pool1d', { f(2, 4, 9), { 3 } }, { f(4, 9), { 3 }, { 2 }, { 1 }, { 2 }, true })
  add('avg_pool1d', { f(2, 4, 9), { 3 } }, { f(4, 9), { 3 }, { 2 }, { 1 }, true, false })
  add('max_pool3d', { f(2, 4, 4, 5, 6), { 2 } },
    { f(4, 4, 5, 6), { 2, 3, 2 }, { 1, 2, 2 }, { 1, 1, 0 }, { 1, 1, 2 }, true })
  add('avg_pool3d', { f(2, 4, 4, 5, 6), { 2 } },
    { f(4, 4, 5, 6), { 2, 3, 2 }, { 1, 2, 2 }, { 1, 1, 0 }, true, false, 5 })
  add('adaptive_avg_pool1d', { f(2, 4, 9), { 4 } }, { f(4, 9), { 1 } })
  add('adaptive_avg_pool3d', { f(2, 4, 4, 5, 6), { 2, 3, 1 } }, { f(4, 4, 5, 6), { 1, 1, 1 } })
  add('_adaptive_avg_pool3d', { f(2, 4, 4, 5, 6), { 2, 3, 1 } })
  add('adaptive_max_pool1d', { f(2, 4, 9), { 4 } }, { f(4, 9), { 1 } })
  add('adaptive_max_pool2d', { f(2, 4, 5, 7), { 2, 3 } }, { f(4, 5, 7), { 1, 1 } })
  add('adaptive_max_pool3d', { f(2, 4, 4, 5, 6), { 2, 3, 1 } }, { f(4, 4, 5, 6), { 2, 2, 2 } })
  add('upsample_nearest1d', { f(2, 4, 5), { 8 } },
    { n = 3, op = '*.vec', f(2, 4, 5), nil, { 1.5 } })
  add('upsample_nearest2d', { f(2, 4, 3, 5), { 6, 8 } },
    { n = 3, op = '*.vec', f(2, 4, 3, 5), nil, { 1.5, 2 } })
  add('upsample_nearest3d', { f(2, 4, 2, 3, 5), { 4, 5, 9 } },
    { n = 3, op = '*.vec', f(2, 4, 2, 3, 5), nil, { 2, 1.5, 2 } })
  add('upsample_linear1d', { f(2, 4, 5), { 8 }, true },
    { n = 4, op = '*.vec', f(2, 4, 5), nil, false, { 1.5 } })
  add('upsample_bilinear2d upsample_bicubic2d', { f(2, 4, 3, 5), { 6, 8 }, true },
    { n = 4, op = '*.vec', f(2, 4, 3, 5), nil, false, { 1.5, 2 } })
  add('upsample_trilinear3d', { f(2, 4, 2, 3, 5), { 4, 5, 9 }, true },
    { n = 4, op = '*.vec', f(2, 4, 2, 3, 5), nil, false, { 2, 1.5, 2 } })
  add('im2col', { f(2, 4, 5, 6), { 2, 3 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { f(4, 5, 6), { 2, 2 }, { 2, 1 }, { 1, 0 }, { 2, 2 } })
  add('col2im', { f(2, 24, 16), { 5, 6 }, { 2, 3 }, { 1, 1 }, { 0, 0 }, { 1, 1 } })
  add('_adaptive_avg_pool2d', { f(2, 4, 5, 7), { 2, 3 } }, { f(4, 5, 7), { 5, 7 } })
end
