--- Small programs that write to tensors. Each is { name, shapes of its inputs, program }; run
--- eagerly and through a graph, they must give the same tensors. Inputs are never written.
local T = require 'nnscaler.tensor'

local aten = require('nnscaler.ops').aten

local cases = {}
local function case(name, shapes, program)
  cases[#cases + 1] = { name = name, shapes = shapes, program = program }
end

case('add_ changes the tensor itself', { { 3, 4 } }, function(x)
  local y = x * 2
  y:add_(1)
  return y
end)

case('a chain of activations', { { 3, 4 } }, function(x)
  local y = x * 2
  y:mul_(0.5):add_(x):relu_():sigmoid_()
  return y
end)

case('a write through a slice', { { 5, 4 } }, function(x)
  local y = x * 1
  y:slice(0, 1, 3):add_(10)
  return y
end)

case('a slice with step and end from the back', { { 7, 3 } }, function(x)
  local y = x * 1
  y:slice(0, 0, -1, 2):mul_(-1)
  return y
end)

case('assignment by index', { { 3, 4 }, { 4 } }, function(x, v)
  local y = x * 1
  y[1] = v
  y[-1] = 7
  return y
end)

case('a view of a view of a view', { { 2, 3, 4 } }, function(x)
  local y = x * 1
  y:transpose(0, 2):select(1, 2):slice(0, 1, 3):mul_(3)
  return y
end)

case('permute', { { 2, 3, 4 }, { 4, 2, 3 } }, function(x, z)
  local y = x * 1
  y:permute({ 2, 0, 1 }):add_(z)
  return y
end)

case('siblings see a write', { { 4, 6 } }, function(x)
  local y = x * 1
  local flat, first, back = y:view({ 24 }), y:select(0, 0), y:t()
  flat:add_(1)
  first:mul_(2)
  return y, flat, first, back
end)

case('a view taken before a write through its sibling', { { 4, 4 } }, function(x)
  local y = x * 1
  local a, b = y:slice(0, 0, 2), y:slice(0, 1, 3)
  a:add_(1)
  b:mul_(2)
  a:sub_(3)
  return a + b, y
end)

case('what was read before a write keeps its value', { { 3 } }, function(x)
  local y = x * 1
  local before = y * 10
  y:add_(1)
  return before + y
end)

case('unsqueeze and squeeze', { { 3, 1, 2 } }, function(x)
  local y = x * 1
  y:squeeze(1):add_(1)
  y:unsqueeze(0):mul_(2)
  return y
end)

case('masked_fill_ through a view', { { 4, 4 } }, function(x)
  local y = x * 1
  local rows = y:narrow(0, 1, 2)
  rows:masked_fill_(rows:gt(0), -5)
  return y
end)

case('copy_ broadcasts', { { 3, 4 }, { 4 } }, function(x, row)
  local y = x * 1
  y:slice(0, 0, 2):copy_(row)
  return y
end)

case('copy_ converts', { { 3 } }, function(x)
  local counts = T.zeros({ 3 }, { dtype = 'int64' })
  counts:copy_(x * 10)
  return counts
end)

case('fill_ and zero_', { { 4, 3 } }, function(x)
  local y = x * 1
  y:select(1, 0):fill_(9)
  y:select(0, 3):zero_()
  return y
end)

case('fill_ with a tensor', { { 4, 3 } }, function(x)
  local y = x * 1
  y:select(1, 2):fill_(x:sum())
  return y
end)

case('index_put_ with accumulation', { { 5, 2 }, { 3, 2 } }, function(x, v)
  local y = x * 1
  local rows = T.tensor({ 4, 0, 4 }, { dtype = 'int64' })
  y:index_put_({ rows }, v, true)
  return y
end)

case('index_add_ and scatter_add_', { { 4, 3 }, { 2, 3 } }, function(x, v)
  local y = x * 1
  local rows = T.tensor({ 3, 1 }, { dtype = 'int64' })
  y:index_add_(0, rows, v)
  y:scatter_add_(0, T.zeros({ 2, 3 }, { dtype = 'int64' }), v)
  return y
end)

case('a loop that fills its result', { { 4, 3 } }, function(x)
  local out = T.zeros { 4, 3 }
  local sum = T.zeros { 3 }
  for i = 0, 3 do
    sum:add_(x[i])
    out[i] = sum
  end
  return out
end)

case('parts of chunk, split and unbind', { { 6, 4 } }, function(x)
  local y = x * 1
  local parts = y:chunk(4, 0)
  parts[2]:add_(1)
  local sized = y:split({ 1, 3 }, 1)
  sized[2]:mul_(2)
  local rows = y:unbind(0)
  rows[6]:fill_(0)
  return y
end)

case('diagonal', { { 4, 4 } }, function(x)
  local y = x * 1
  y:diagonal():fill_(1)
  return y
end)

case('movedim', { { 2, 3, 4 } }, function(x)
  local y = x * 1
  y:movedim({ 0 }, { 2 }):select(0, 1):add_(1)
  return y
end)

case('a reshape of memory known to be dense', { { 2, 3 } }, function(x)
  local y = T.zeros { 2, 3 }
  y:reshape({ 6 }):slice(0, 2, 4):add_(1)
  return y + x
end)

case('a value written into two places', { { 3 } }, function(x)
  local y, z = T.zeros { 3 }, T.zeros { 3 }
  local v = x * 2
  y:copy_(v)
  z:copy_(v)
  y:add_(1)
  return y, z, v
end)

case('a write to a result whose source is not read again', { { 2, 3, 4 } }, function(x)
  local y = x:transpose(0, 1):reshape({ 3, 8 })
  y:add_(1)
  return y
end)

case('an out argument', { { 2, 3 }, { 3 } }, function(x, y)
  local z, both = T.zeros { 2, 3 }, T.zeros { 2, 3 }
  aten['mul.out'](x, y, { out = z })
  aten['add.out'](both, z, { out = both })
  return z, both
end)

return cases
