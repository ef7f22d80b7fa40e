-- Calls that stand for several are chosen while a program is written: which, and where not; loss
-- and gradients are those of eager runs.
local Eager = require 'nnscaler.runtime.eager'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local lower = require 'nnscaler._C.lower'
local nn = require 'nnscaler.nn'
local trace = require 'nnscaler.trace'

local sizes = { vocab = 16, layers = 2, heads = 4, width = 16, block = 8 }
local function llama()
  return Llama { vocab = 16, layers = 2, heads = 4, kv_heads = 2, width = 16, hidden = 24,
    block = 8 }
end
local function gpt() return GPT(sizes) end

local function sample()
  local generator = T.generator(3)
  local function draw() return T.randint(0, 16, { 4, 8 }, { generator = generator }) end
  return { x = draw(), y = draw() }
end

local function text_of(model, training)
  local s = sample()
  local graph = trace(model, training and { s.x, s.y } or { s.x }, { training = training })
  return lower.lower(graph, {}):lua()
end

-- How often a program calls an operator.
local function count(text, operator)
  local n = 0
  for name in text:gmatch 'nnscaler%.([%w_]+)%(' do n = n + (name == operator and 1 or 0) end
  for name in text:gmatch 'aten%.([%w_]+)%(' do n = n + (name == operator and 1 or 0) end
  return n
end

local function step(engine_class, model)
  local engine = engine_class.new(model, { seed = 7 })
  local result = engine:train_step({ sample() }, { step = 1, seed = 7 })
  local grads = {}
  for _, p in ipairs(engine.parameters) do grads[p.name] = engine:grad(p.name):to 'float64' end
  return result.loss, grads
end

local function equal_eager(make, dtype, limit)
  local loss, grads = step(Program, make():to(dtype))
  local want, truth = step(Eager, make():to(dtype))
  assert.is_true(math.abs(loss / want - 1) <= limit, loss / want - 1)
  for name, grad in pairs(truth) do
    local off = (grads[name] - grad):norm():item() / grad:norm():item()
    assert.is_true(off <= limit, ('%s: %g'):format(name, off))
  end
end

describe('a program of LLaMA', function()
  it('turns queries and keys, gates and norms in one call each', function()
    local text = text_of(llama(), true)
    -- Two layers of one body: its calls are written once in each direction.
    assert.equal(2, count(text, 'rope'))
    assert.equal(2, count(text, 'rope_backward'))
    assert.equal(1, count(text, 'swiglu'))
    assert.equal(1, count(text, 'swiglu_backward'))
    assert.equal(1, count(text, 'add_rms_norm')) -- behind attention: of one layer
    for _, operator in ipairs { 'silu', 'silu_backward', 'neg', 'cat' } do
      assert.equal(0, count(text, operator), operator)
    end
    assert.matches('nnscaler.rms_norm_backward%([^\n]-\n?[^\n]-{ true, true }, d_add', text)
  end)

  it('does so in evaluation', function()
    local text = text_of(llama():eval(), false)
    assert.equal(2, count(text, 'rope'))
    assert.equal(1, count(text, 'swiglu'))
    assert.equal(0, count(text, 'neg'))
  end)

  it('is left as it is in float64', function()
    local text = text_of(llama():to 'float64', true)
    for _, operator in ipairs { 'rope', 'swiglu', 'add_rms_norm' } do
      assert.equal(0, count(text, operator), operator)
    end
  end)
end)

describe('a program of GPT', function()
  it('sums and norms in one call', function()
    local text = text_of(gpt(), true)
    assert.equal(1, count(text, 'add_layer_norm'))
    assert.equal(0, count(text, 'native_layer_norm'))
    assert.equal(0, count(text_of(gpt():to 'float64', true), 'add_layer_norm'))
  end)
end)

describe('loss and gradients are those of eager runs', function()
  for name, make in pairs { llama = llama, gpt = gpt } do
    it(name .. ' in float32', function() equal_eager(make, 'float32', 2e-5) end)
    it(name .. ' in float64', function() equal_eager(make, 'float64', 1e-12) end)
  end
end)

describe('what is nearly of the form is left as it is', function()
  local aten = require('nnscaler.ops').aten
  local function made(forward, with)
    local Model = nn.class 'Model'
    function Model:init()
      self.lin = nn.Linear(8, 8)
      if with then self.table = nn.Parameter { shape = { 8 } } end
      self.norm = nn.RMSNorm(8)
    end
    function Model:forward(x) return forward(self, self.lin(x)):sum() end
    return Model()
  end
  local function text(forward, with)
    local graph = trace(made(forward, with), { T.zeros { 3, 8 } }, { training = true })
    return lower.lower(graph, {}):lua()
  end

  it('a gate of another shape', function()
    assert.equal(0, count(text(function(_, y) return aten.silu(y) * y:narrow(1, 0, 1) end),
      'swiglu'))
    assert.equal(0, count(text(function(_, y) return aten.silu(y) * 2 end), 'swiglu'))
  end)

  it('a gate that others read too is made for them', function()
    local made_ = text(function(_, y)
      local open = aten.silu(y)
      return open * y + open
    end)
    assert.equal(1, count(made_, 'swiglu'))
    assert.equal(1, count(made_, 'silu'))
  end)

  it('halves in the other order', function()
    local cos, sin = T.ones { 3, 8 }, T.ones { 3, 8 }
    local function turn(swap)
      return function(_, y)
        local left, right = unpack(y:chunk(2, -1))
        local turned = swap and aten.cat({ left, -right }, -1) or aten.cat({ -right, left }, -1)
        return y * cos + turned * sin
      end
    end
    assert.equal(1, count(text(turn(false)), 'rope'))
    assert.equal(0, count(text(turn(true)), 'rope'))
  end)

  it('a sum that is read before its norm', function()
    local function sum(between)
      return function(self, y)
        local s = y + y * 3
        local other = between and s:exp() or nil
        local n = self.norm(s)
        return other and n * other or n + s
      end
    end
    assert.equal(1, count(text(sum(false)), 'add_rms_norm'))
    assert.equal(0, count(text(sum(true)), 'add_rms_norm'))
  end)
end)
