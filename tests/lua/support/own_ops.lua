--- Registered operators that the tests use.
local F = require 'nnscaler.functional'
local ops = require 'nnscaler.ops'
local register_op = require 'nnscaler.register_op'
local T = require 'nnscaler.tensor'

local M = {}

local function randn(generator, ...)
  return T.randn({ ... }, { generator = generator, dtype = 'float64' })
end

-- Rows and hidden columns are free, the contraction is a sum.
M.swiglu = register_op('tests::swiglu', {
  annotation = 'n k^, h k^, h k^ -> n h',
  body = function(x, gate, up) return F.silu(F.linear(x, gate)) * F.linear(x, up) end,
  inputs = function(g) return { randn(g, 4, 6), randn(g, 8, 6), randn(g, 8, 6) } end,
})

M.project = register_op('tests::project', {
  annotation = { 'n k+, h k+ -> n h', 'b n k+, h k+ -> b n h' },
  body = function(x, w) return F.linear(x, w) end,
  inputs = function(g) return { randn(g, 2, 4, 6), randn(g, 8, 6) } end,
})

-- `groups` is the number of groups here: a split of them halves it.
M.group_scale = register_op('tests::group_scale', {
  annotation = 'n (groups c), (groups c) -> n (groups c)',
  body = function(x, w, groups)
    local n, width = x.shape[1], x.shape[2]
    local y = x:reshape { n, groups, width / groups }
    return (y - y:mean(-1, true)):reshape { n, width } * w
  end,
  inputs = function(g) return { randn(g, 4, 12), randn(g, 12), 3 } end,
})

-- Rows of a table from `first` on; others give zeros: parts of the table give addends.
M.rows = register_op('tests::rows', {
  annotation = 'n, v^ d -> n d',
  body = function(index, weight, first)
    local here = index:ge(first):logical_and(index:lt(first + weight.shape[1]))
    local safe = (index - first):masked_fill(here:logical_not(), 0)
    local out = F.embedding(safe, weight)
    return out * here:unsqueeze(-1):to(out.dtype)
  end,
  rules = {
    { input = 1, dim = 0, inputs = { 'R', 'D0' }, outputs = { 'V' },
      modify = function(arguments, parts, part)
        return { first = arguments.first + part * 8 / parts }
      end },
  },
  inputs = function(g) return { T.randint(0, 8, { 5 }, { generator = g }), randn(g, 8, 4), 0 } end,
})

-- Linear in its operand: addends in, addends out.
M.double = register_op('tests::double', {
  annotation = 'a b -> a b',
  body = function(x) return x * 2 end,
  rules = { { input = 0, dim = 0, inputs = { 'V' }, outputs = { 'V' } } },
  inputs = function(g) return { randn(g, 4, 4) } end,
})

-- Every part of h makes all of the second result: the gradient of s is whole there, not an addend.
M.beside = register_op('tests::beside', {
  annotation = 'a h, a : /h -> a h, a',
  body = function(x, s) return x * 2, s:sin() end,
  inputs = function(g) return { randn(g, 4, 6), randn(g, 4) } end,
})
M.beside_unmarked = register_op('tests::beside_unmarked', {
  annotation = 'a h, a -> a h, a',
  body = function(x, s) return x * 2, s:sin() end,
  inputs = function(g) return { randn(g, 4, 6), randn(g, 4) } end,
})

-- Derivatives written out: of a product with a plain argument, and of two results.
M.gated = register_op('tests::gated', {
  annotation = 'n k^, h k^, h k^ -> n h',
  body = function(x, gate, up, k) return F.sigmoid(F.linear(x, gate)) * F.linear(x, up) * k end,
  backward = function(grad, x, gate, up, k)
    local s, u = F.sigmoid(F.linear(x, gate)), F.linear(x, up)
    local d_up, d_gate = grad * s * k, grad * u * k * s * (1 - s)
    return d_gate:matmul(gate) + d_up:matmul(up), d_gate:t():matmul(x), d_up:t():matmul(x)
  end,
  inputs = function(g) return { randn(g, 4, 6), randn(g, 8, 6), randn(g, 8, 6), 3 } end,
})
M.norm_and_unit = register_op('tests::norm_and_unit', {
  annotation = 'a h^ -> a, a h^',
  body = function(x)
    local norm = (x * x):sum(1):sqrt()
    return norm, x / norm:unsqueeze(1)
  end,
  backward = function(d_norm, d_unit, _, norm, unit)
    local along = d_norm - (d_unit * unit):sum(1) / norm
    return along:unsqueeze(1) * unit + d_unit / norm:unsqueeze(1)
  end,
  inputs = function(g) return { randn(g, 4, 6) } end,
})

-- Of a shared library: shapes by its annotation, derivative by LibTorch.
local build = (os.getenv 'NNSCALER_BIN' or 'build/nnscaler'):match '^(.*)/' or '.'
M.cube = register_op('tests_library::cube', {
  annotation = 'a b -> a b', library = build .. '/tests/own_library/libown_library.so',
  inputs = function(g) return { randn(g, 4, 6), 0.5 } end,
})

-- Those with mistakes.
M.wrong_split = register_op('tests::wrong_split', {
  annotation = 'a b -> a b', body = function(x) return x:softmax(-1) end,
  inputs = function(g) return { randn(g, 4, 6) } end,
})
M.wrong_backward = register_op('tests::wrong_backward', {
  annotation = 'a b -> a b',
  body = function(x) return x * x end,
  backward = function(grad, x) return grad * x end,
  inputs = function(g) return { randn(g, 4, 6) } end,
})
local calls = 0
M.counts = register_op('tests::counts', {
  body = function(x)
    calls = calls + 1
    return x + calls
  end,
  inputs = function(g) return { randn(g, 2) } end,
})
M.noisy = register_op('tests::noisy', {
  body = function(x) return F.dropout(x, 0.5, true) end,
})
M.writes = register_op('tests::writes', {
  body = function(x) return x:add_(1) end,
})
M.gelu_of = register_op('tests::two', {
  annotation = 'a b -> a b, b',
  body = function(x, k) return x * k, ops.aten.sum(x, { 0 }) end,
})

return M
