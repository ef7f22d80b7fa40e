--- Example calls of operators that read and write by index.
---@param add fun(names: string, ...: table)
---@param m nnscaler.verify.Maker
return function(add, m)
  local f, i, b = m.f, m.i, m.b
  local T = require 'nnscaler.tensor'
  local function ints(list) return T.tensor(list, { dtype = 'int64' }) end

  add('index_select', { f(4, 6), 1, i(6, 8) }, { f(4, 6), 0, i(4, 2) })
  add('gather', { f(4, 6), 1, i(6, 4, 8) }, { f(4, 6), 0, i(4, 2, 6) }, { f(4, 6), 1, i(6, 2, 3) })
  add('take_along_dim', { f(4, 6), i(6, 4, 2), 1 }, { f(4, 6), i(24, 5) })
  add('scatter.src', { f(4, 6), 1, ints { { 0, 3 }, { 1, 2 }, { 5, 4 }, { 2, 0 } }, f(4, 2) })
  add('scatter.value', { f(4, 6), 1, i(6, 4, 1), 1.5 })
  add('scatter', { op = 'scatter.reduce', f(4, 6), 1, i(6, 4, 2), f(4, 2), { reduce = 'add' } })
  add('scatter_add', { f(4, 6), 1, i(6, 4, 8), f(4, 8) })
  add('index_add', { f(4, 6), 1, i(6, 8), f(4, 8) })
  add('index_copy', { f(4, 6), 1, ints { 5, 0 }, f(4, 2) })
  add('index_fill', { f(4, 6), 1, ints { 5, 0 }, 1.5 },
    { f(4, 6), 0, ints { 1 }, T.scalar(2, 'float64') })
  add('index', { f(4, 6), { i(4, 8) } }, { f(4, 6, 2), { i(4, 8, 2), i(6, 2) } },
    { f(4, 6, 2), { false, i(6, 4) } })
  add('index_put', { f(4, 6), { ints { 0, 3 } }, f(2, 6) },
    { f(4, 6), { i(4, 5), i(6, 5) }, f(5), true })
  add('slice_scatter', { f(4, 6), f(4, 2), 1, 1, 5, 2 })
  add('select_scatter', { f(4, 6), f(4), 1, 2 })
  add('diagonal_scatter', { f(4, 6), f(4) })
  add('embedding', { f(10, 6), i(10, 4, 8) })
  add('embedding_dense_backward', { f(4, 8, 6), i(10, 4, 8), 10, -1, false },
    { f(8, 6), i(10, 8), 10, 2, true })
  add('one_hot', { i(5, 4, 6), 5 })
  add('nonzero argwhere', { b(4, 6), refused = true })
  add('masked_select', { f(4, 6), b(4, 6), refused = true })
  add('bincount', { i(5, 8), refused = true })
  add('_unique', { f(8), refused = true })
  add('_unique2 unique_consecutive', { f(8), refused = true })
  add('unique_dim', { f(4, 6), 0, refused = true })
end
