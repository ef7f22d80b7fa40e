-- Operators from Lua: overloads, conversions, results, errors.
local C = require 'nnscaler._C.tensor'
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local ops = require 'nnscaler.ops'
local message = require 'tests.lua.support.message'
local aten = ops.aten

describe('a call by name', function()
  local x = T.tensor { { 1, 2, 3 }, { 4, 5, 6 } }

  it('picks the overload from the arguments', function()
    assert.same({ { 3, 4, 5 }, { 6, 7, 8 } }, aten.add(x, 2):tolist())
    assert.same({ { 2, 4, 6 }, { 8, 10, 12 } }, aten.add(x, x):tolist())
    assert.equal(21, x:sum():item())
    assert.same({ 5, 7, 9 }, x:sum(0):tolist())
    assert.same({ 5, 7, 9 }, x:sum({ 0 }):tolist())
    assert.same({ { 6 }, { 15 } }, x:sum(-1, true):tolist())
  end)

  it('takes keywords in a last table, by both doors', function()
    assert.same({ { 5, 7, 9 } }, x:sum({ dim = { 0 }, keepdim = true }):tolist())
    assert.same({ { 11, 22, 33 }, { 44, 55, 66 } }, aten.add(x, x, { alpha = 10 }):tolist())
    assert.same({ { 1, 0, 1 }, { 0, 1, 0 } }, aten.fmod(x, { other = 2 }):tolist())
  end)

  it('takes the tensors of a last list one after the other', function()
    assert.equal(91, T.einsum('ij,ij->', x, x):item())
    assert.equal(91, T.einsum('ij,ij->', { x, x }):item())
    assert.same({ 3, 6 }, T.block_diag(x[0], x).shape)
    local a, b = unpack(T.meshgrid(x[0], x[1], { indexing = 'ij' }))
    assert.same({ { 1, 1, 1 }, { 2, 2, 2 }, { 3, 3, 3 } }, a:tolist())
    assert.same({ { 4, 5, 6 }, { 4, 5, 6 }, { 4, 5, 6 } }, b:tolist())
    assert.matches('aten::cat.*is a tensor', message(T.cat, x, x))
  end)

  it('takes an overload by its full name', function()
    assert.same({ { 1, 4, 9 }, { 16, 25, 36 } }, aten['mul.Tensor'](x, x):tolist())
    assert.same({ { 2, 4, 6 }, { 8, 10, 12 } }, aten['mul.Scalar'](x, 2):tolist())
    assert.equal(21, aten['sum.default'](x):item())
  end)

  it('returns several results as several values', function()
    local values, indices = x:max(1)
    assert.same({ 3, 6 }, values:tolist())
    assert.same({ 2, 2 }, indices:tolist())
    local parts = x:split(2, 1)
    assert.equal(2, #parts)
    assert.same({ { 3 }, { 6 } }, parts[2]:tolist())
  end)

  it('takes trailing integers as one list', function()
    assert.same({ 3, 2 }, x:view(3, 2).shape)
    assert.same({ 3, 2 }, x:permute(1, 0).shape)
    assert.same({ 2, 3, 4 }, T.zeros(2, 3, 4).shape)
    assert.same({}, T.zeros({}).shape)
  end)

  it('takes nil for an optional argument, and the default for others', function()
    local y = aten.layer_norm(x, { 3 }, nil, nil, 1e-5)
    assert.is_near(-1.2247, y[{ 0, 0 }]:item(), 1e-4)
    assert.same({ { 2, 3 }, { 5, 6 } }, aten.slice(x, 1, 1, nil):tolist())
    assert.same({ { 1, 2 }, { 4, 5 } }, aten.slice(x, 1, nil, 2):tolist())
  end)

  it('takes a number for a tensor where only tensors are known', function()
    assert.same({ { 3, 3, 3 }, { 4, 5, 6 } }, aten.maximum(x, 3):tolist())
  end)

  it('takes lists of tensors, with false for nil', function()
    assert.same({ 4, 3 }, aten.cat({ x, x }, 0).shape)
    assert.same({ 2, 2, 3 }, T.stack({ x, x }).shape)
    local i = T.tensor({ 2, 0 }, { dtype = 'int64' })
    assert.same({ { 3, 1 }, { 6, 4 } }, aten.index(x, { false, i }):tolist())
  end)

  it('gives back the same tensor for an in-place operator', function()
    local y = x:clone()
    assert.is_true(rawequal(y, y:add_(1)))
    assert.is_true(rawequal(y, y:clamp_(0, 3)))
    assert.same({ { 2, 3, 3 }, { 3, 3, 3 } }, y:tolist())
  end)

  it('gives undefined results as nil', function()
    local a, b, c = aten.native_layer_norm_backward(x, x, { 3 }, x:mean(1, true), x:mean(1, true),
      nil, nil, { true, false, false })
    assert.same({ 2, 3 }, a.shape)
    assert.is_nil(b)
    assert.is_nil(c)
  end)

  it('takes strings for dtype, device, layout and memory format', function()
    local y = T.zeros({ 2 }, { dtype = 'float64', device = 'cpu', layout = 'strided' })
    assert.equal('float64', y.dtype)
    assert.equal('int64', x:to('int64').dtype)
    assert.equal('float64', x:to('cpu', 'float64').dtype)
    assert.equal('float64', x:type_as(y).dtype)
    local image = T.zeros(1, 2, 3, 3):contiguous { memory_format = 'channels_last' }
    assert.same({ 18, 1, 6, 2 }, image:stride())
  end)

  it('reaches operators that have no fast form', function()
    assert.same({ { 1, 0 }, { 0, 1 } }, T.eye(2):tolist())
    assert.is_near(0.5403, aten.cos(T.tensor(1)):item(), 1e-4)
    assert.same({ 19, 22, 43, 50 }, aten.einsum('ij,jk->ik', { T.tensor { { 1, 2 }, { 3, 4 } },
      T.tensor { { 5, 6 }, { 7, 8 } } }):flatten():tolist())
  end)
end)

describe('numbers', function()
  it('stay integers only where the tensor is integral', function()
    local i = T.tensor({ 1, 2, 3 }, { dtype = 'int64' })
    assert.equal('int64', (i + 2).dtype)
    assert.equal('float32', (i + 2.5).dtype)
    assert.equal('float32', (i / 2).dtype)
    assert.equal('int64', aten.fmod(i, 2).dtype)
    assert.equal('int64', (T.tensor { true, false } + 1).dtype)
    assert.equal('float32', (T.tensor { 1, 2 } + 2).dtype)
    assert.equal('float32', (i * T.scalar(2)).dtype)
  end)

  it('make float32 tensors by default', function()
    assert.equal('float32', T.full({ 2 }, 1).dtype)
    assert.equal('int64', T.arange(3).dtype)
    assert.equal('int64', T.arange(1, 7, 2).dtype)
    assert.equal('float32', T.arange(0, 1, 0.25).dtype)
    assert.equal('float32', T.arange(2.5).dtype)
    assert.equal('float32', T.full({ 2 }, 3).dtype)
    assert.equal('float32', T.linspace(0, 4, 5).dtype)
    local g = { generator = T.generator(1) }
    assert.equal('int64', T.randint(3, { 2 }, g).dtype)
    assert.equal('int64', T.randperm(3, g).dtype)
    assert.equal('int64', T.arange(3, { dtype = 'int64' }).dtype)
    assert.equal('float32', T.tensor { 1, 2 }.dtype)
    assert.equal('bool', T.tensor { true }.dtype)
  end)

  it('work on both sides of an operator', function()
    local x = T.tensor { 1, 2, 4 }
    assert.same({ 1, 0, -2 }, (2 - x):tolist())
    assert.same({ 4, 2, 1 }, (4 / x):tolist())
    assert.same({ 2, 4, 16 }, (2 ^ x):tolist())
    assert.same({ 1, 4, 16 }, (x ^ 2):tolist())
    assert.same({ 1, 2, 1 }, (x % 3):tolist())
    assert.same({ -1, -2, -4 }, (-x):tolist())
    assert.same({ 6, 7, 9 }, (5 + x):tolist())
    assert.same({ 3, 6, 12 }, (3 * x):tolist())
  end)
end)

describe('an error of a call', function()
  local x = T.zeros(2, 3)

  it('names the argument that is wrong and what it should be', function()
    local text = message(aten.linear, x, 'w')
    assert.matches("[tensor.call] aten::linear: argument 2 'weight' is the string 'w'; expected a "
      .. 'tensor', text, 1, true)
    assert.matches('aten::linear(Tensor input, Tensor weight', text, 1, true)
    assert.matches("argument 2 'weight' is missing", message(aten.linear, x), 1, true)
    assert.matches("there is no argument 'bais'", message(aten.linear, x, x, { bais = x }), 1,
      true)
    assert.matches("argument 'weight' is given twice",
      message(aten.linear, x, x, { weight = x }), 1, true)
    assert.matches('4 arguments by position; expected at most 3',
      message(aten.linear, x, x, x, x), 1, true)
    assert.matches("argument 2 'dim' is the number 0.5; expected an integer",
      message(aten.unsqueeze, x, 0.5), 1, true)
  end)

  it('lists the overloads when none matches', function()
    local text = message(aten.add, x, 'y')
    assert.matches("aten::add: no overload takes (a tensor float32[2, 3], the string 'y')", text, 1,
      true)
    assert.matches('aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor', text,
      1, true)
  end)

  it('names operator, module path and all shapes when shapes do not fit', function()
    C.push_module('transformer.h.0.mlp')
    local text = message(aten.linear, x, T.zeros(5, 4))
    local product = message(aten.fmod, x, T.zeros(2, 2))
    C.pop_module()
    assert.equal("[tensor.call] aten::linear in 'transformer.h.0.mlp': mm: mat1 and mat2 shapes "
      .. 'cannot be multiplied (2x3 and 4x5); input float32[2, 3]; weight float32[5, 4]', text)
    assert.matches("aten::fmod.Tensor in 'transformer.h.0.mlp': The size of tensor a (3) must",
      product, 1, true)
    assert.matches('self float32[2, 3]; other float32[2, 2]', product, 1, true)
  end)

  it('has no C++ stack in it', function()
    assert.is_nil(message(aten.mm, x, x):find('Exception raised', 1, true))
    assert.is_nil(message(function() return x:reshape(4, 4) end):find('\n', 1, true))
  end)

  it('says which operator does not exist', function()
    assert.matches("there is no operator 'aten::matmull'", message(function()
      return aten.matmull
    end), 1, true)
    assert.matches("a tensor has no property or operator 'matmull'", message(function()
      return x:matmull(x)
    end), 1, true)
  end)

  it('explains why comparing and counting are refused', function()
    assert.matches('tensors cannot be compared', message(function() return x < x end), 1, true)
    assert.matches('tensors cannot be compared', message(function() return x <= x end), 1, true)
    assert.matches('x:size(0)', message(function() return #x end), 1, true)
    assert.matches('6 elements; expected one', message(function() return x:item() end), 1, true)
  end)

  it('says what is wrong with a table of numbers', function()
    assert.matches('a list at depth 1 has 1 elements; expected 2 elements',
      message(T.tensor, { { 1, 2 }, { 3 } }), 1, true)
    assert.matches('an element is a string', message(T.tensor, { 'a' }), 1, true)
    assert.matches("there is no dtype 'float31'", message(T.tensor, { 1 },
      { dtype = 'float31' }), 1, true)
  end)

  it('says why there is no GPU', function()
    local usable, why = T.has_cuda()
    if usable then return pending('a GPU is here') end
    assert.is_true(#why > 0)
    assert.matches("'cuda' cannot be used: ", message(T.zeros, { 2 }, { device = 'cuda' }), 1,
      true)
  end)
end)

describe('random numbers', function()
  it('come from explicit generators only', function()
    local function draw(seed) return T.randn(3, { generator = T.generator(seed) }):tolist() end
    assert.same(draw(1), draw(1))
    assert.not_same(draw(1), draw(2))
    assert.matches('T.randn without a generator', message(T.randn, 2), 1, true)
    assert.matches('aten::rand would draw from LibTorch\'s hidden generator',
      message(aten.rand, { 2 }), 1, true)
    assert.matches('hidden generator', message(function() T.zeros(2):normal_() end), 1, true)
    local x = T.zeros(100):uniform_(0, 1, { generator = T.generator(3) })
    assert.is_true(x:min():item() >= 0 and x:max():item() < 1 and x:std():item() > 0.1)
    local i = T.randint(2, 5, { 100 }, { generator = T.generator(3) })
    assert.equal('int64', i.dtype)
    assert.equal(2, i:min():item())
    assert.equal(4, i:max():item())
  end)

  it('of dropout follow from seed, module path, ordinal, step and micro-batch', function()
    local x = T.ones(64)
    local function draw(seed, path, step, micro)
      C.reset_ordinals()
      C.set_random { seed = seed, step = step, micro = micro }
      C.push_module(path)
      local first, second = F.dropout(x, 0.5), F.dropout(x, 0.5)
      C.pop_module()
      return first:tolist(), second:tolist()
    end
    local first, second = draw(1, 'h.0', 0, 0)
    local again, again2 = draw(1, 'h.0', 0, 0)
    assert.same(first, again)
    assert.same(second, again2)
    assert.not_same(first, second)
    assert.not_same(first, (draw(2, 'h.0', 0, 0)))
    assert.not_same(first, (draw(1, 'h.1', 0, 0)))
    assert.not_same(first, (draw(1, 'h.0', 1, 0)))
    assert.not_same(first, (draw(1, 'h.0', 0, 1)))
    assert.same(ops.nnscaler.dropout(x, 0.5, 'h.0:dropout#1', 1, 0, 0):tolist(), second)
    C.set_random { seed = 0, step = 0, micro = 0 }
  end)

  it('are not drawn by dropout in evaluation or with p = 0', function()
    local x = T.ones(8)
    assert.same(x:tolist(), F.dropout(x, 0.5, false):tolist())
    assert.same(x:tolist(), F.dropout(x, 0, true):tolist())
    assert.matches('p is 2; expected a number from 0 to 1', message(F.dropout, x, 2), 1, true)
  end)

  it('count calls that draw nothing, as a graph does', function()
    local x = T.ones(64)
    C.reset_ordinals()
    C.push_module('m')
    ops.aten.dropout(x, 0.5, false)
    local drawn = ops.aten.dropout(x, 0.5, true)
    C.pop_module()
    assert.same(ops.nnscaler.dropout(x, 0.5, 'm:dropout#1', 0, 0, 0):tolist(), drawn:tolist())
  end)

  it('of attention become our composed attention', function()
    local g = T.generator(5)
    local q = T.randn(1, 2, 8, 4, { generator = g })
    C.reset_ordinals()
    C.push_module('attn')
    local y = F.scaled_dot_product_attention(q, q, q, { dropout_p = 0.5, is_causal = true })
    C.pop_module()
    local expected = ops.nnscaler.attention_dropout(q, q, q, nil, 0.5, true, nil,
      'attn:scaled_dot_product_attention#0', 0, 0, 0)
    assert.same(expected:tolist(), y:tolist())
  end)
end)

describe('functional', function()
  local x = T.tensor { { 1, 2, 3 }, { 1, -1, 0 } }

  -- Values from PyTorch 2.15.
  it('gives the values of PyTorch', function()
    local ids = T.tensor({ 2, 0 }, { dtype = 'int64' })
    assert.is_near(0.40760600566864014, F.cross_entropy(x, ids):item(), 1e-6)
    assert.is_near(0.8152120113372803, F.cross_entropy(x, ids, { reduction = 'sum' }):item(), 1e-6)
    assert.is_near(0.40760600566864014, F.cross_entropy(x, T.tensor({ 2, -100 },
      { dtype = 'int64' })):item(), 1e-6)
    assert.is_near(0.8411920070648193, F.gelu(x, 'tanh')[{ 0, 0 }]:item(), 1e-6)
    assert.is_near(0.8413447141647339, F.gelu(x)[{ 0, 0 }]:item(), 1e-6)
    assert.is_near(0.09003057330846786, F.softmax(x, -1)[{ 0, 0 }]:item(), 1e-7)
    assert.is_near(0.7310585975646973, F.silu(x)[{ 0, 0 }]:item(), 1e-6)
  end)

  it('refuses an unknown reduction', function()
    assert.matches("reduction 'avg'; expected none, mean or sum",
      message(F.mse_loss, x, x, { reduction = 'avg' }), 1, true)
  end)
end)
