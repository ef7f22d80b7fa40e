-- Tensors: properties, indexing, autograd, modes, parameters, memory.
local C = require 'nnscaler._C.tensor'
local T = require 'nnscaler.tensor'
local aten = require 'nnscaler.ops'.aten
local base = require 'nnscaler._C.base'
local message = require 'tests.lua.support.message'

describe('a tensor', function()
  local x = T.tensor { { 1, 2, 3 }, { 4, 5, 6 } }

  it('tells its shape, dtype and device', function()
    assert.same({ 2, 3 }, x.shape)
    assert.same({ 2, 3 }, x:size())
    assert.equal(3, x:size(-1))
    assert.equal(2, x:dim())
    assert.equal(6, x:numel())
    assert.equal('float32', x.dtype)
    assert.equal('cpu', x.device)
    assert.equal('real', x.kind)
    assert.is_false(x.requires_grad)
    assert.same({ 1, 3 }, x:t():stride())
    assert.is_false(x:t():is_contiguous())
    assert.matches('dimension 2; expected -2 to 1 for shape [2, 3]',
      message(function() x:size(2) end), 1, true)
  end)

  it('becomes nested lists and comes from them', function()
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:tolist())
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, x:t():tolist())
    assert.equal(7, T.tensor(7):tolist())
    assert.same({ true, false }, T.tensor { true, false }:tolist())
    assert.same({ 2, 0 }, T.tensor({ {}, {} }).shape)
    assert.equal(2 ^ 53, T.tensor({ 2 ^ 53 }, { dtype = 'int64' })[0]:item())
  end)

  it('says which property it does not have', function()
    assert.matches("no property 'colour' that can be set",
      message(function() x.colour = 1 end), 1, true)
  end)
end)

describe('indexing', function()
  local x = T.arange(24, { dtype = 'int64' }):reshape(2, 3, 4)

  it('selects, slices and adds dimensions', function()
    assert.same({ 3, 4 }, x[1].shape)
    assert.equal(23, x[{ -1, -1, -1 }]:item())
    assert.same({ { 5, 6 }, { 17, 18 } }, x[{ ':', 1, '1:3' }]:tolist())
    assert.same({ 0, 2 }, x[{ 0, 0, '::2' }]:tolist())
    assert.same({ 3, 15 }, x[{ '...', 0, -1 }]:tolist())
    assert.same({ 2, 1, 3, 4 }, x[{ ':', 'new' }].shape)
    assert.same({ 1, 2 }, x[{ 0, 0, T.slice(1, 3) }]:tolist())
  end)

  it('gathers by lists, integer and boolean tensors', function()
    assert.same({ { 0, 1, 2, 3 }, { 8, 9, 10, 11 } }, x[{ 0, { 0, 2 } }]:tolist())
    assert.same({ 3, 0 }, x[{ 0, 0, { 3, 0 } }]:tolist())
    assert.same({ 1, 3, 4 }, x[T.tensor({ 1 }, { dtype = 'int64' })].shape)
    assert.same({ 22, 23 }, x[x:gt(21)]:tolist())
    assert.same({ 2, 2, 4 }, x[{ ':', T.tensor { true, false, true } }].shape)
  end)

  it('assigns numbers, lists and tensors', function()
    local y = T.zeros(2, 3)
    y[0] = 1
    y[{ 1, '1:3' }] = { 5, 6 }
    y[{ ':', 0 }] = T.tensor { 7, 8 }
    assert.same({ { 7, 1, 1 }, { 8, 5, 6 } }, y:tolist())
    y[{ 0, { 1, 2 } }] = 9
    y[y:gt(8)] = 0
    assert.same({ { 7, 0, 0 }, { 8, 5, 6 } }, y:tolist())
  end)

  it('says what it cannot use', function()
    assert.matches('4 indices for a tensor of shape [2, 3, 4]; expected at most 3',
      message(function() return x[{ 0, 0, 0, 0 }] end), 1, true)
    assert.matches("entry 1 is 'a'; expected a number, range, list, tensor",
      message(function() return x[{ 'a' }] end), 1, true)
    assert.matches('index 2 out of range for tensor of size [2, 3, 4] at dimension 0',
      message(function() return x[2] end), 1, true)
  end)
end)

describe('autograd', function()
  it('gives gradients of leaves', function()
    local w = T.tensor({ 1, 2, 3 }, { requires_grad = true })
    local loss = (w * w):sum()
    loss:backward()
    assert.same({ 2, 4, 6 }, w.grad:tolist())
    aten.mul(w, 2):sum():backward()
    assert.same({ 4, 6, 8 }, w.grad:tolist())
    w.grad = nil
    assert.is_nil(w.grad)
    assert.is_true(w.is_leaf)
    assert.is_false(loss:detach().requires_grad)
  end)

  it('gives gradients as values, of higher order too', function()
    local w = T.tensor({ 3 }, { requires_grad = true })
    local first = T.grad(w ^ 3, w, { create_graph = true })[1]
    assert.same({ 27 }, first:tolist())
    assert.same({ 18 }, T.grad(first, w)[1]:tolist())
    local other = T.tensor({ 1 }, { requires_grad = true })
    assert.is_false(T.grad(w * 2, { w, other }, { allow_unused = true })[2])
  end)

  it('is off inside no_grad, inference_mode and without_autograd', function()
    local w = T.tensor({ 1 }, { requires_grad = true })
    local function product(k) return (w * k).requires_grad end
    assert.is_false(T.no_grad(product, 2))
    assert.is_true(T.no_grad(T.enable_grad, product, 2))
    assert.is_false(T.inference_mode(product, 2))
    assert.is_false(C.without_autograd(product, 2))
    assert.is_true(C.without_autograd(C.with_autograd, product, 2))
    assert.is_true(product(2))
  end)

  it('is on again after an error inside a block', function()
    local w = T.tensor({ 1 }, { requires_grad = true })
    for _, block in ipairs { T.no_grad, T.inference_mode, C.without_autograd } do
      assert.is_false(pcall(block, error, 'stop'))
      assert.is_true((w * 2).requires_grad)
      assert.is_true(C.grad_enabled())
    end
  end)

  it('refuses a loss that is not a scalar or has no history', function()
    local w = T.tensor({ 1, 2 }, { requires_grad = true })
    assert.matches('[tensor.backward] a loss of shape [2] has 2 elements; expected a scalar',
      message(function() (w * 2):backward() end), 1, true)
    assert.matches('does not depend on anything that requires a gradient',
      message(function() T.tensor(1):backward() end), 1, true)
  end)
end)

describe('autocast', function()
  it('runs products in the shorter dtype', function()
    local x = T.ones(2, 2)
    assert.equal('bfloat16', T.autocast('bfloat16', aten.mm, x, x).dtype)
    assert.equal('float32', aten.mm(x, x).dtype)
    assert.matches("dtype 'float32'; expected bfloat16 or float16",
      message(T.autocast, 'float32', aten.mm, x, x), 1, true)
  end)
end)

describe('a parameter', function()
  local function normal(path)
    return C.parameter { shape = { 3, 2 }, init = { kind = 'normal', std = 0.5 }, path = path }
  end

  it('has shape and dtype without data', function()
    local p = normal 'fc.weight'
    assert.equal('parameter', p.kind)
    assert.same({ 3, 2 }, p.shape)
    assert.equal(6, p:numel())
    assert.is_true(p.requires_grad)
    assert.is_false(p.materialized)
    assert.is_nil(p.data)
    assert.matches("[tensor.data] parameter 'fc.weight' (float32[3, 2]) has no data yet",
      message(function() return p + 1 end), 1, true)
    assert.matches('materialize', message(function() return p:sum() end), 1, true)
  end)

  it('is drawn as a pure function of seed and path', function()
    local function draw(path, seed) return normal(path):materialize(seed).data:tolist() end
    assert.same(draw('a', 1), draw('a', 1))
    assert.not_same(draw('a', 1), draw('b', 1))
    assert.not_same(draw('a', 1), draw('a', 2))
  end)

  it('stands for its data afterwards', function()
    local p = C.parameter { shape = { 2 }, init = { kind = 'ones' } }
    p:materialize(0)
    local loss = (p * 3):sum()
    loss:backward()
    assert.equal(6, loss:item())
    assert.same({ 3, 3 }, p.grad:tolist())
    p.data = T.tensor { 5, 6 }
    assert.same({ 5, 6 }, p:tolist())
    assert.matches('expected the same of its data',
      message(function() p.data = T.zeros(3) end), 1, true)
  end)

  it('knows every initialiser', function()
    local function made(init, shape)
      return C.parameter { shape = shape or { 1000 }, init = init, path = 'w' }:materialize(3).data
    end
    assert.same({ 2, 2 }, made({ kind = 'constant', value = 2 }, { 2 }):tolist())
    assert.same({ { 1, 0 }, { 0, 1 } }, made({ kind = 'eye' }, { 2, 2 }):tolist())
    local u = made { kind = 'uniform', low = -3, high = -1 }
    assert.is_true(u:min():item() >= -3 and u:max():item() < -1)
    assert.is_near(-2, u:mean():item(), 0.1)
    local n = made { kind = 'normal', mean = 1, std = 2 }
    assert.is_near(1, n:mean():item(), 0.3)
    assert.is_near(2, n:std():item(), 0.3)
    local t = made { kind = 'trunc_normal', std = 1, cut = 0.5 }
    assert.is_true(t:abs():max():item() <= 0.5)
    local function ramp() return T.arange(3, { dtype = 'float32' }) end
    local computed = made({ kind = 'buffer', compute = ramp }, { 3 })
    assert.same({ 0, 1, 2 }, computed:tolist())
    assert.matches("init.kind is 'xavier'", message(made, { kind = 'xavier' }), 1, true)
  end)

  it('changes dtype before and after it has data', function()
    local p = normal 'a'
    p.dtype = 'float64'
    p:materialize(1)
    assert.equal('float64', p.dtype)
    p.dtype = 'float32'
    assert.equal('float32', p.data.dtype)
    assert.is_true(p.requires_grad)
  end)
end)

describe('the module scope', function()
  it('counts calls per module and operator', function()
    C.reset_ordinals()
    C.push_module('a')
    assert.equal(0, C.next_ordinal('aten::relu'))
    assert.equal(1, C.next_ordinal('aten::relu'))
    assert.equal(0, C.next_ordinal('aten::tanh'))
    C.push_module('a.b')
    assert.equal('a.b', C.module_path())
    assert.equal(0, C.next_ordinal('aten::relu'))
    C.pop_module()
    assert.equal(2, C.next_ordinal('aten::relu'))
    C.reset_ordinals()
    assert.equal(0, C.next_ordinal('aten::relu'))
    C.push_module('x')
    C.reset_modules(0)
    assert.equal('', C.module_path())
    assert.equal(0, C.module_depth())
  end)
end)

describe('memory of tensors', function()
  it('is freed by release, and using the tensor then is an error', function()
    collectgarbage()
    local _, before = C.live()
    local x = T.zeros(1000)
    local _, during = C.live()
    assert.equal(4000, during - before)
    x:release()
    local _, after = C.live()
    assert.equal(before, after)
    assert.matches('was released', message(function() return x + 1 end), 1, true)
    assert.equal('tensor(released)', tostring(x))
    x:release()
    local a, b = T.zeros(10), T.zeros(10)
    C.release(a, nil, b)
    assert.equal('released', b.kind)
  end)

  it('calls the collector also where only forgotten views hold it', function()
    collectgarbage()
    local before = C.memory()
    for _ = 1, 400 do
      local x = T.empty(2 ^ 22) -- 16 MiB, never touched
      assert.equal(2 ^ 22, x:view { 2 ^ 11, 2 ^ 11 }:numel())
      x:release()
    end
    assert.is_true(C.memory() - before < 2 ^ 30)
  end)

  it('is counted by the allocator, with its peak', function()
    collectgarbage()
    C.memory(true)
    local before = C.memory()
    for _, n in ipairs { 1, 64, 1000, 3 * 2 ^ 20 } do
      local x, y = T.empty(n), T.empty(n)
      local live = C.memory()
      assert.equal(before + 8 * n, live)
      x:release()
      y:release()
      assert.equal(before, (C.memory()))
    end
    local _, peak = C.memory()
    assert.equal(before + 24 * 2 ^ 20, peak)
  end)

  it('never gives one block to two tensors', function()
    local list, kept = {}, {}
    for round = 1, 20 do
      for i = 1, 60 do
        list[i] = T.full({ (i * 37 + round * 101) % 4000 + 1 }, i + 100 * round)
      end
      for i = 1, 60 do
        if i % 3 == 0 then kept[#kept + 1] = { list[i], i + 100 * round } else list[i]:release() end
      end
    end
    for _, entry in ipairs(kept) do
      assert.equal(entry[2], entry[1]:min():item())
      assert.equal(entry[2], entry[1]:max():item())
    end
  end)

  it('of dead tensors does not pile up', function()
    collectgarbage()
    local peak = 0
    for _ = 1, 1000 do
      local x = T.empty(256, 1024)  -- 1 MiB, dead at once
      local _, bytes = C.live()
      peak = math.max(peak, bytes)
      assert(x)
    end
    assert.is_true(peak < 100 * 2 ^ 20)
  end)

  it('is level over 10,000 steps', function()
    local w = T.tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
    local x = T.ones(2, 2)
    local function steps(n)
      for _ = 1, n do
        local loss = x:matmul(w):relu():sum()
        loss:backward()
        T.no_grad(function() w:sub_(w.grad * 1e-6) end)
        w.grad = nil
      end
      collectgarbage()
      collectgarbage()
      local boxes, bytes = C.live()
      return boxes, bytes, collectgarbage('count')
    end
    local boxes, bytes, heap = steps(100)
    local boxes2, bytes2, heap2 = steps(10000)
    assert.equal(boxes, boxes2)
    assert.equal(bytes, bytes2)
    assert.is_near(heap, heap2, 64)
  end)

  -- Of this process: pages taken from the system, and KiB that are resident.
  local function pages()
    local stat = base.file_read '/proc/self/stat'
    local fields = stat:match '%) (.*)'
    local n = 0
    for field in fields:gmatch '%S+' do
      n = n + 1
      if n == 8 then return tonumber(field) end
    end
  end
  local function resident()
    return tonumber(base.file_read('/proc/self/status'):match 'VmRSS:%s+(%d+) kB')
  end

  it('of large tensors is kept for the next of that size, which costs no pages', function()
    local n = 12 * 2 ^ 20 -- 48 MiB
    T.ones(n):release()
    local before = pages()
    for _ = 1, 20 do T.ones(n):release() end
    assert.is_true(pages() - before < 64, ('%d pages'):format(pages() - before))
  end)

  it('of large tensors is never more than was in use at one time', function()
    collectgarbage()
    local before = resident()
    for mib = 40, 400, 24 do T.ones(mib * 2 ^ 18):release() end
    local largest = T.ones(400 * 2 ^ 18)
    assert.is_true(resident() - before < 410 * 2 ^ 10, ('%d KiB'):format(resident() - before))
    largest:release()
    local parts = {}
    for i = 1, 8 do parts[i] = T.ones(48 * 2 ^ 18) end
    assert.is_true(resident() - before < 410 * 2 ^ 10, ('%d KiB'):format(resident() - before))
    C.release(unpack(parts))
  end)
end)
