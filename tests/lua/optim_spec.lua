-- Optimizers against PyTorch's formulas, written out in Lua numbers (float64).
local T = require 'nnscaler.tensor'
local optim = require 'nnscaler.optim'
local message = require 'tests.lua.support.message'

local function float64(values) return T.tensor(values, { dtype = 'float64' }) end

local function parameter(name, values, frozen)
  return { name = name, data = float64(values), requires_grad = not frozen }
end

-- Gradient of step k for element i: any fixed numbers will do.
local function gradient(k, i) return math.sin(3 * k + i) * (i % 2 == 0 and 0.1 or 2) end

local function gradients_of(k, n)
  local values = {}
  for i = 1, n do values[i] = gradient(k, i) end
  return float64(values)
end

local function near(expected, actual, tolerance)
  local scale = math.max(math.abs(expected), 1e-3)
  assert.is_true(math.abs(expected - actual) <= (tolerance or 1e-13) * scale,
    ('%.17g expected, got %.17g'):format(expected, actual))
end

local function run(config, formula, steps)
  local start = { 0.5, -1.25, 3, 0.01 }
  local parameters = { parameter('w', start) }
  local optimizer = optim.new(config, parameters)
  local w, state = { unpack(start) }, {}
  for i = 1, #start do state[i] = {} end
  for k = 1, steps do
    optimizer:collect(function() return gradients_of(k, #start) end)
    optimizer:step(optimizer.lr * k)
    for i = 1, #start do
      w[i] = formula(w[i], gradient(k, i), state[i], k, optimizer.lr * k)
    end
    for i, value in ipairs(parameters[1].data:tolist()) do near(w[i], value) end
  end
end

local function adam(options)
  return function(w, g, s, k, lr)
    local b1, b2 = options.betas[1], options.betas[2]
    if options.decoupled then w = w * (1 - lr * options.weight_decay)
    else g = g + options.weight_decay * w end
    s.m = (s.m or 0) * b1 + (1 - b1) * g
    s.v = (s.v or 0) * b2 + (1 - b2) * g * g
    local v = s.v
    if options.amsgrad then
      s.max = math.max(s.max or 0, s.v)
      v = s.max
    end
    local denominator = math.sqrt(v) / math.sqrt(1 - b2 ^ k) + 1e-8
    return w - lr / (1 - b1 ^ k) * s.m / denominator
  end
end

describe('optimizers', function()
  it('AdamW follows its formula, with PyTorch\'s defaults', function()
    run({ type = 'adamw' },
      adam { betas = { 0.9, 0.999 }, weight_decay = 0.01, decoupled = true }, 7)
  end)

  it('AdamW takes arguments', function()
    run({ type = 'adamw', args = { lr = 0.02, betas = { 0.8, 0.95 }, weight_decay = 0.3,
      amsgrad = true } },
      adam { betas = { 0.8, 0.95 }, weight_decay = 0.3, decoupled = true, amsgrad = true }, 7)
  end)

  it('Adam adds the decay to the gradient', function()
    run({ type = 'adam' }, adam { betas = { 0.9, 0.999 }, weight_decay = 0 }, 5)
    run({ type = 'adam', args = { weight_decay = 0.1 } },
      adam { betas = { 0.9, 0.999 }, weight_decay = 0.1 }, 5)
  end)

  it('Lion follows its formula', function()
    local function lion(b1, b2, decay)
      return function(w, g, s, _, lr)
        local c = b1 * (s.m or 0) + (1 - b1) * g
        s.m = b2 * (s.m or 0) + (1 - b2) * g
        return w * (1 - lr * decay) - lr * (c > 0 and 1 or c < 0 and -1 or 0)
      end
    end
    run({ type = 'lion' }, lion(0.9, 0.99, 0), 6)
    run({ type = 'lion', args = { lr = 0.02, betas = { 0.8, 0.95 }, weight_decay = 0.3 } },
      lion(0.8, 0.95, 0.3), 6)
  end)

  it('SGD follows its formula', function()
    local function sgd(momentum, dampening, decay, nesterov)
      return function(w, g, s, _, lr)
        g = g + decay * w
        if momentum > 0 then
          s.b = s.b and momentum * s.b + (1 - dampening) * g or g
          g = nesterov and g + momentum * s.b or s.b
        end
        return w - lr * g
      end
    end
    run({ type = 'sgd' }, sgd(0, 0, 0), 4)
    run({ type = 'sgd', args = { lr = 0.1, momentum = 0.9, dampening = 0.2, weight_decay = 0.05 } },
      sgd(0.9, 0.2, 0.05), 6)
    run({ type = 'sgd', args = { lr = 0.1, momentum = 0.7, nesterov = true } },
      sgd(0.7, 0, 0, true), 6)
  end)

  it('leave alone what has no gradient, and never touch what is frozen', function()
    local parameters = { parameter('a', { 1, 2 }), parameter('b', { 3 }),
      parameter('c', { 4 }, true) }
    local optimizer = optim.new({ type = 'adamw', args = { weight_decay = 0.5 } }, parameters)
    local asked = {}
    for k = 1, 3 do
      optimizer:collect(function(name)
        asked[#asked + 1] = name
        if name == 'b' and k < 3 then return nil end
        return gradients_of(k, name == 'a' and 2 or 1)
      end)
      optimizer:step(0.1)
      if k < 3 then assert.same({ 3 }, parameters[2].data:tolist()) end
    end
    assert.same({ 'a', 'b', 'a', 'b', 'a', 'b' }, asked)
    assert.same({ 4 }, parameters[3].data:tolist())
    assert.same({ a = 3, b = 1 }, optimizer:state().counts)
    -- The first update of b uses the bias corrections of step 1: w·(1 − lr·decay) − lr·sign(g).
    near(3 * (1 - 0.05) - 0.1 * (gradient(3, 1) > 0 and 1 or -1), parameters[2].data:tolist()[1],
      1e-7)
  end)

  it('have groups by name pattern', function()
    local parameters = { parameter('h.0.weight', { 1 }), parameter('h.0.bias', { 1 }),
      parameter('h.0.ln.weight', { 1 }) }
    local optimizer = optim.new({ type = 'sgd', args = { lr = 0.5, weight_decay = 0.5, groups = {
      { match = '*.bias', weight_decay = 0 }, { match = { 'h.?.ln.*' }, lr = 0.25 },
    } } }, parameters)
    optimizer:collect(function() return float64 { 0 } end)
    optimizer:step(0.1) -- a fifth of the base
    near(1 - 0.1 * 0.5, parameters[1].data:item())
    near(1, parameters[2].data:item())
    near(1 - 0.05 * 0.5, parameters[3].data:item())
  end)

  it('scale and clip as PyTorch does', function()
    local parameters = { parameter('a', { 0, 0 }), parameter('b', { 0 }) }
    local optimizer = optim.new({ type = 'sgd', args = { lr = 1 } }, parameters)
    local function collect()
      optimizer:collect(function(name) return float64(name == 'a' and { 6, 0 } or { 8 }) end)
    end
    collect()
    local norm = optimizer:scale(0.5)
    near(5, norm)
    optimizer:clip(norm, 0)
    optimizer:clip(norm, 6)
    assert.same({ 3, 0 }, optimizer.gradients[1]:tolist())
    optimizer:clip(norm, 2)
    near(3 * 2 / (5 + 1e-6), optimizer.gradients[1]:tolist()[1])
    near(4 * 2 / (5 + 1e-6), optimizer.gradients[2]:item())
  end)

  it('measure the norm of float32 gradients in float64', function()
    local n = 100003
    local parameters = { { name = 'w', data = T.zeros({ n }), requires_grad = true } }
    local optimizer = optim.new({ type = 'sgd' }, parameters)
    local g = T.full({ n }, 0.1)
    optimizer:collect(function() return g end)
    local x = g:tolist()[1] -- 0.1 in float32
    near(math.sqrt(n) * x, optimizer:scale(1), 1e-12)
  end)

  it('take gradients that lie in memory in another order', function()
    local w = { name = 'w', data = float64 { { 0, 0, 0 }, { 0, 0, 0 } }, requires_grad = true }
    local optimizer = optim.new({ type = 'sgd', args = { lr = 1 } }, { w })
    optimizer:collect(function() return float64({ { 1, 2 }, { 3, 4 }, { 5, 6 } }):t() end)
    optimizer:step(1)
    assert.same({ { -1, -3, -5 }, { -2, -4, -6 } }, w.data:tolist())
  end)

  it('take gradients that share their memory', function()
    local parameters = { parameter('a', { 0 }), parameter('b', { 0 }) }
    local optimizer = optim.new({ type = 'sgd', args = { lr = 1 } }, parameters)
    local g = float64 { 8 }
    optimizer:collect(function() return g end)
    near(math.sqrt(32), optimizer:scale(0.5))
    optimizer:step(1)
    assert.same({ -4, -4 }, { parameters[1].data:item(), parameters[2].data:item() })
  end)

  it('go on from a saved state as if nothing had been', function()
    local function advance(optimizer, from, to)
      for k = from, to do
        optimizer:collect(function() return gradients_of(k, 2) end)
        optimizer:step(0.01)
      end
    end
    local whole = { parameter('w', { 1, 2 }) }
    advance(optim.new({ type = 'adamw' }, whole), 1, 6)
    local part = { parameter('w', { 1, 2 }) }
    local first = optim.new({ type = 'adamw' }, part)
    advance(first, 1, 3)
    local second = optim.new({ type = 'adamw' }, part)
    second:load_state(first:state())
    advance(second, 4, 6)
    assert.same(whole[1].data:tolist(), part[1].data:tolist())
  end)
end)

describe('several kinds of optimizers', function()
  local config = { type = 'muon', args = { lr = 0.1, ns_dtype = 'float64', groups = {
    { match = { '*.bias', 'scale' }, type = 'adamw', lr = 0.02 },
    { match = 'head.*', type = 'lion', weight_decay = 0.1 },
    { match = 'other.weight', momentum = 0.5 },
  } } }
  local shapes = { ['body.weight'] = { 3, 4 }, ['body.bias'] = { 4 }, ['head.weight'] = { 4, 2 },
    ['other.weight'] = { 2, 2 }, scale = {} }
  local order = { 'body.weight', 'body.bias', 'head.weight', 'other.weight', 'scale' }

  local function parameters()
    local list = {}
    for i, name in ipairs(order) do
      list[i] = { name = name, requires_grad = true,
        data = T.randn(shapes[name], { dtype = 'float64', generator = T.generator(i) }) }
    end
    return list
  end
  local function advance(optimizer, first, last)
    for k = first, last do
      optimizer:collect(function(name)
        local at = k
        for i, other in ipairs(order) do at = other == name and at + 100 * i or at end
        return T.randn(shapes[name], { dtype = 'float64', generator = T.generator(at) })
      end)
      optimizer:step(optimizer.lr)
    end
  end
  -- One parameter alone under its own kind.
  local function alone(index, own)
    local list = { parameters()[index] }
    advance(optim.new(own, list), 1, 4)
    return list[1].data:tolist()
  end

  it('share the weights of a model by name, each with its own options', function()
    local list = parameters()
    advance(optim.new(config, list), 1, 4)
    local kinds = {
      { type = 'muon', args = { lr = 0.1, ns_dtype = 'float64' } },
      { type = 'adamw', args = { lr = 0.02 } }, { type = 'lion', args = { weight_decay = 0.1 } },
      { type = 'muon', args = { lr = 0.1, ns_dtype = 'float64', momentum = 0.5 } },
      { type = 'adamw', args = { lr = 0.02 } },
    }
    for i = 1, #order do assert.same(alone(i, kinds[i]), list[i].data:tolist(), order[i]) end
  end)

  it('go on from a saved state', function()
    local whole, part = parameters(), parameters()
    advance(optim.new(config, whole), 1, 6)
    local first = optim.new(config, part)
    advance(first, 1, 3)
    local second = optim.new(config, part)
    second:load_state(first:state())
    advance(second, 4, 6)
    for i = 1, #order do assert.same(whole[i].data:tolist(), part[i].data:tolist(), order[i]) end
  end)

  it('count what each keeps', function()
    local slots = require 'nnscaler.optim.slots'
    -- muon 12 and 4, adamw 2 · 4 and 2 · 1, lion 8
    assert.equal(8 * (12 + 4 + 8 + 2 + 8), slots.bytes(optim.new(config, parameters())))
    -- a row and a column of each matrix, the whole of others
    assert.equal(8 * (7 + 4 + 6 + 4 + 1), slots.bytes(optim.new({ type = 'adafactor' },
      parameters())))
  end)

  it('refuse parts of weights where they update whole ones', function()
    local slots = require 'nnscaler.optim.slots'
    local part = { ['body.weight'] = { shape = { 3, 4 }, start = { 0, 0 }, whole = { 6, 4 } } }
    assert.matches("the rank holds a part of 'body.weight', and muon updates whole weights",
      message(slots.check_parts, optim.new(config, parameters()), part))
    assert.matches("and adafactor updates whole weights", message(slots.check_parts,
      optim.new({ type = 'adafactor' }, parameters()), part))
    slots.check_parts(optim.new({ type = 'lion' }, parameters()), part)
  end)
end)

describe('messages of optimizers', function()
  local function new(config) return message(optim.new, config, { parameter('w', { 1 }) }) end

  it('name what is wrong', function()
    assert.matches("nothing is named 'adamx'; expected adafactor, adam, adamw, lion, "
      .. 'mixed_precision_adamw, muon, sgd', new { type = 'adamx' })
    assert.matches("muon updates matrices; 'w' has shape %[1%]", new { type = 'muon' })
    assert.matches('beta2_decay is 1; expected a number ≤ 0',
      new { type = 'adafactor', args = { beta2_decay = 1 } })
    assert.matches('d is 0; expected a number ≥ 1', new { type = 'adafactor', args = { d = 0 } })
    assert.matches('eps has to be a list of two numbers ≥ 0',
      new { type = 'adafactor', args = { eps = 1e-3 } })
    assert.matches("adjust_lr_fn is 'none'; expected original or match_rms_adamw",
      new { type = 'muon', args = { adjust_lr_fn = 'none' } })
    assert.matches("ns_dtype is 'int8'; expected bfloat16, float32 or float64",
      new { type = 'muon', args = { ns_dtype = 'int8' } })
    assert.matches('ns_steps is 100; expected an integer from 1 to 99',
      new { type = 'muon', args = { ns_steps = 100 } })
    assert.matches('ns_coefficients has to be a list of three numbers',
      new { type = 'muon', args = { ns_coefficients = { 1, 2 } } })
    assert.matches("optimizer.args.groups%[1%].*unknown key 'betas'; expected",
      new { type = 'adamw', args = { groups = { { match = 'w', type = 'sgd', betas = {} } } } })
    assert.matches("unknown key 'betas'; .*hint: one of another kind of optimizer is left out by "
      .. 'optimizer.args.betas=null', new { type = 'sgd', args = { betas = { 0.9, 0.95 } } })
    assert.matches("unknown key 'learning_rate'; expected amsgrad, betas, eps, fused, lr",
      new { type = 'adamw', args = { learning_rate = 1 } })
    assert.matches('betas%[2%] is 1; expected 0',
      new { type = 'adamw', args = { betas = { 0.9, 1 } } })
    assert.matches('lr is %-1; expected a number', new { type = 'adamw', args = { lr = -1 } })
    assert.matches('nesterov with momentum 0', new { type = 'sgd', args = { nesterov = true } })
    assert.matches("'%*.bias' fits no parameter; the first is 'w'",
      new { type = 'sgd', args = { groups = { { match = '*.bias', lr = 1 } } } })
  end)

  it('name the state that does not fit', function()
    local optimizer = optim.new({ type = 'adamw' }, { parameter('w', { 1, 2 }) })
    local function load(state) return message(optimizer.load_state, optimizer, state) end
    local m, v = float64 { 0, 0 }, float64 { 0, 0 }
    local function tensors(...) return { ... } end
    local function moment(name, data) return { parameter = 'w', name = name, data = data } end
    assert.matches("state 'exp_avg_sq' of 'w' is missing",
      load { counts = { w = 1 }, tensors = tensors(moment('exp_avg', m)) })
    assert.matches("no state of parameter 'w'", load { counts = {}, tensors = {} })
    assert.matches("state 'exp_avg' of 'w' has shape %[1%]; expected %[2%]",
      load { counts = { w = 1 }, tensors = tensors(moment('exp_avg', float64 { 0 })) })
    assert.matches("state 'exp_avg' of 'u' belongs to no trainable parameter",
      load { counts = { w = 0 },
        tensors = tensors { parameter = 'u', name = 'exp_avg', data = v } })
  end)
end)

describe('what an optimizer keeps', function()
  local slots = require 'nnscaler.optim.slots'

  -- Rows have one sum of squares each, in another dtype; beside it a tensor like the weight.
  local rows = {
    defaults = { lr = 0.1 },
    slots = function()
      return { 'mean', { name = 'row', dtype = 'float64',
        shape = function(shape) return { shape[1] } end } }
    end,
    update = function(_, bucket)
      for i, w in ipairs(bucket.parameters) do
        bucket.row[i]:add_(bucket.gradients[i]:square():sum(1):to 'float64')
        bucket.mean[i]:copy_(bucket.gradients[i])
        w:sub_(bucket.gradients[i] * bucket.lr)
      end
    end,
  }
  local function made(kind, weight)
    return optim.new({ type = kind }, { { name = 'w', data = weight, requires_grad = true } })
  end

  it('is declared before anything runs, and made so', function()
    local w = T.ones { 2, 3 }
    local optimizer = made(rows, w)
    assert.same({ { parameter = 'w', name = 'mean', shape = { 2, 3 }, dtype = 'float32' },
      { parameter = 'w', name = 'row', shape = { 2 }, dtype = 'float64' } }, optimizer:declared())
    assert.equal(2 * 3 * 4 + 2 * 8, slots.bytes(optimizer))
    optimizer:collect(function() return T.full({ 2, 3 }, 2) end)
    optimizer:step(0.5)
    local state = optimizer:state()
    assert.same({ 12, 12 }, state.tensors[2].data:tolist())
    assert.equal('float64', state.tensors[2].data.dtype)
    local again = made(rows, T.ones { 2, 3 })
    again:load_state(state)
    state.tensors[2].data = T.zeros { 2 }
    assert.error_matches(function() again:load_state(state) end,
      "state 'row' of 'w' is float32; expected float64")
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, w:tolist())
  end)

  it('is nothing where the kind keeps it itself', function()
    local count = 0
    local optimizer = made({ defaults = { lr = 1 }, update = function() count = count + 1 end },
      T.ones { 2 })
    assert.same({}, optimizer:declared())
    optimizer:collect(function() return T.ones { 2 } end)
    optimizer:step(1)
    assert.equal(1, count)
    assert.same({}, optimizer:state().tensors)
  end)

  it('has to lie as the part of a weight does', function()
    local part = { w = { shape = { 2, 3 }, start = { 2, 0 }, whole = { 4, 3 } } }
    assert.error_matches(function() slots.check_parts(made(rows, T.ones { 2, 3 }), part) end,
      "the rank holds a part of 'w', whose slot 'row' has a shape of its own")
    local own = { defaults = { lr = 1 }, update = function() end }
    assert.error_matches(function() slots.check_parts(made(own, T.ones { 2, 3 }), part) end,
      "a part of 'w', and the optimizer says neither slots nor elementwise")
    own.elementwise = true
    slots.check_parts(made(own, T.ones { 2, 3 }), part)
    slots.check_parts(made(rows, T.ones { 2, 3 }), { w = { shape = { 2, 3 }, whole = { 2, 3 } } })
  end)
end)
