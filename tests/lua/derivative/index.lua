--- Calls that test the derivatives of operators that address elements by index.
---@param add fun(names: string, ...: table)
---@param m table
return function(add, m)
  local T = require 'nnscaler.tensor'
  local f, i = m.f, m.i
  local A, B = m.A, m.B
  local function ints(list) return T.tensor(list, { dtype = 'int64' }) end

  add('index_select', { f(A, 6), 1, i(6, 8) }, { f(A, B), 0, i(A, 2) }, { f(A, 6), -1, ints { 3 } },
    { f(), 0, ints { 0 } }, { f(A, 6), 1, i(6, 0) })
  add('gather', { f(4, 6), 1, i(6, 4, 8) }, { f(4, 6), 0, i(4, 2, 6) }, { f(4, 6), -1, i(6, 2, 3) },
    { f(4, 6), 1, i(6, 4, 0) }, { f(), 0, i(1) })
  add('take_along_dim', { f(A, 6), i(6, A, 2), 1 },
    { f(4, 6), i(24, 5), forms = { 'dense', 'cut' } }, { f(1, 6), i(6, A, 2), 1 },
    { f(A, 6), i(6, 1, 2), -1 })
  add('scatter.src', { op = 'scatter.src', f(4, 6), 1, ints { { 0, 3 }, { 1, 2 }, { 5, 4 },
    { 2, 0 } },
    f(4, 2) }, { op = 'scatter.src', f(4, 6), 0, ints { { 3, 1, 0 }, { 0, 2, 1 } }, f(2, 3) })
  add('scatter.value', { op = 'scatter.value', f(4, 6), 1, i(6, 4, 3), 1.5 },
    { op = 'scatter.value', f(4, 6), -1, i(6, 4, 0), 1.5 })
  add('scatter_add', { f(4, 6), 1, i(6, 4, 8), f(4, 8) }, { f(4, 6), 0, i(4, 2, 3), f(2, 3) },
    { f(4, 6), 1, i(6, 4, 0), f(4, 0) })
  add('index_add', { f(A, 6), 1, i(6, 8), f(A, 8) },
    { f(4, B), 0, i(4, 3), f(3, B), { alpha = 2.5 } },
    { f(A, 6), -1, i(6, 0), f(A, 0) })
  add('index_fill', { f(A, 6), 1, ints { 5, 0 }, 1.5 }, { f(4, B), 0, ints { 1, 1 }, f() },
    { f(A, 6), -1, i(6, 0), f() })
  add('index', { f(4, 6), { i(4, 8) } }, { f(4, 6, B), { i(4, 8, 2), i(6, 2) } },
    { f(4, 6, B), { false, i(6, 4) } }, { f(4, 6, 5), { i(4, 3), false, i(5, 3) } },
    { f(4, 6), { i(4, 0) } }, { f(4, 6), { ints { -1, 2 } } })
  add('index_put', { f(4, B), { ints { 0, 3 } }, f(2, B) },
    { f(4, 6), { i(4, 5), i(6, 5) }, f(5), true },
    { f(4, 6), { i(4, 5) }, f(6), true }, { f(4, 6), { ints { 1, 2 } }, f() },
    { f(4, 6), { false, ints { 1, 2 } }, f(2) }, { f(4, 6), { i(4, 5) }, f(1, 1), true })
  add('embedding', { f(10, B), i(10, 4, 8) }, { f(10, B), i(10, 5), 2 }, { f(10, B), i(10, 5), -3 },
    { f(10, B), i(3, 7), -1, true }, { f(10, B), i(10, 0) }, { f(10, B), i(10) })
end
