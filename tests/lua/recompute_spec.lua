--- Recompute groups of a plan: less memory between forward and backward, the same bits.
local F = require 'nnscaler.functional'
local GPT = require 'nnscaler.models.gpt'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local door = require 'nnscaler._C.tensor'
local lower = require 'nnscaler._C.lower'
local memory = require 'tests.lua.support.program_memory'
local message = require 'tests.lua.support.message'
local nn = require 'nnscaler.nn'
local policies = require 'nnscaler.policies'
local trace = require 'nnscaler.trace'

local function model()
  return GPT { vocab = 16, layers = 4, heads = 2, width = 8, block = 8, dropout = 0.1 }:to 'float64'
end

local function plain(graph) graph:replicate_rest() end
local function by_layer(graph)
  graph:recompute 'transformer.h.?'
  graph:replicate_rest()
end
local function by_mlp(graph)
  for mlp in graph:modules '*.mlp' do graph:recompute(mlp) end
  graph:replicate_rest()
end

local function sample()
  local generator = T.generator(3)
  local function draw() return T.randint(0, 16, { 4, 8 }, { generator = generator }) end
  return { x = draw(), y = draw() }
end

local function step(policy)
  local engine = Program.new(model(), { seed = 7, pas_policy = policy })
  engine:prepare(sample())
  local result = engine:train_step({ sample(), sample() }, { step = 1 })
  local grads = {}
  for _, p in ipairs(engine.parameters) do grads[p.name] = engine:grad(p.name) end
  return result.loss, grads
end

local function bytes(policy)
  local s = sample()
  local graph = trace(model(), { s.x, s.y }, { training = true })
  local plan = policies.run(graph, policy, { plan_ngpus = 1, runtime_ngpus = 1 })
  return memory.of(lower.lower(graph, { plan = plan }))
end

describe('recompute groups of a plan', function()
  it('keep less between forward and backward, and less at once', function()
    local saved, peak = bytes(plain)
    local saved_mlp, peak_mlp = bytes(by_mlp)
    local saved_layer, peak_layer = bytes(by_layer)
    assert.is_true(saved_mlp < saved * 0.75, ('%d of %d saved'):format(saved_mlp, saved))
    assert.is_true(saved_layer < saved * 0.25, ('%d of %d saved'):format(saved_layer, saved))
    assert.is_true(peak_mlp < peak * 0.9, ('peak %d, was %d'):format(peak_mlp, peak))
    assert.is_true(peak_layer < peak * 0.6, ('peak %d, was %d'):format(peak_layer, peak))
  end)

  it('give the same loss and gradients, bit for bit, masks of dropout too', function()
    local loss, grads = step(plain)
    for _, policy in ipairs { by_layer, by_mlp } do
      local again, others = step(policy)
      assert.equal(loss, again)
      for name, grad in pairs(grads) do assert.is_true(grad:equal(others[name]), name) end
    end
  end)

  it('of parts that run in turns need the memory of one part', function()
    local Wide = nn.class 'Wide'
    function Wide:init() self.fc, self.proj = nn.Linear(4, 256), nn.Linear(256, 4) end
    function Wide:forward(x) return self.proj(F.gelu(self.fc(x))):pow(2):sum() end
    local graph = trace(Wide {}, { T.zeros { 64, 4 } }, { training = true })
    local function peak_of(turns)
      local devices = {}
      for i = 1, turns do devices[i] = 0 end
      local plan = policies.run(graph, function(g)
        local wide = { g:module('fc'):op(), g:select({ op = 'gelu' })[1], g:module('proj'):op() }
        g:recompute(wide)
        for _, node in ipairs(wide) do
          g:partition(node, { input = 0, dim = 0 }, turns)
          g:assign(node, devices)
        end
        g:replicate_rest()
      end, { plan_ngpus = 1, runtime_ngpus = 1 })
      local _, peak = memory.of(lower.lower(graph, { plan = plan }))
      return peak
    end
    local whole, parts = peak_of(1), peak_of(8)
    assert.is_true(parts < whole / 4, ('peak %d in 8 turns, %d in one'):format(parts, whole))
  end)

  it('are refused across stages, twice, and of nothing', function()
    local s = sample()
    local graph = trace(model(), { s.x, s.y }, { training = true })
    local function refusal(n, policy)
      return message(policies.run, graph, policy, { plan_ngpus = n, runtime_ngpus = n })
    end
    assert.matches('are in different stages; expected one stage', refusal(2, function(g)
      g:stage({ g:module('transformer.h.1.mlp'):nodes()[1] }, { { 0 }, { 1 } })
      g:recompute(g:module 'transformer.h.1')
    end))
    assert.matches('transformer.h.0.mlp.c_fc .* is of group 0 already', refusal(1, function(g)
      g:recompute(g:module 'transformer.h.0')
      g:recompute(g:module 'transformer.h.0.mlp')
    end))
    assert.matches("no module matches 'decoder.%*'", refusal(1, function(g)
      g:recompute 'decoder.*'
    end))
    assert.matches("no module 'transformer.h.9' makes a call.*those that do: transformer",
      refusal(1, function(g) g:module 'transformer.h.9' end))
    assert.matches('no node; expected one', refusal(1, function(g) g:recompute {} end))
  end)

  describe('by pas_config.recompute_modules', function()
    local graph
    setup(function()
      local s = sample()
      graph = trace(model(), { s.x, s.y }, { training = true })
    end)
    local function plan(given, policy, n)
      return policies.run(graph, policy or 'dp', { plan_ngpus = n or 1, runtime_ngpus = n or 1,
        pas_config = { recompute_modules = given } })
    end
    local function groups(...)
      local seen, count = {}, 0
      for group in plan(...):text():gmatch 'recompute (%d+)' do
        if not seen[group] then seen[group], count = true, count + 1 end
      end
      return count
    end

    it('takes paths, patterns, lists of them, and the whole model', function()
      assert.equal(4, groups 'transformer.h.*') -- the outer modules, not those inside
      assert.equal(2, groups 'transformer.h.0, transformer.h.3.mlp')
      assert.equal(2, groups { 'transformer.h.0', 'transformer.h.0.mlp', '*.h.1.attn' })
      assert.equal(1, groups 'ROOT')
      assert.equal(2, groups('ROOT', 'pp', 2)) -- one a stage
    end)

    it('gives the same loss and gradients on one device, bit for bit, in less memory', function()
      local loss, grads = step(plain)
      for _, given in ipairs { 'transformer.h.*', 'ROOT' } do
        local engine = Program.new(model(), { seed = 7, pas_policy = 'dp',
          pas_config = { recompute_modules = given } })
        engine:prepare(sample())
        assert.equal(loss, engine:train_step({ sample(), sample() }, { step = 1 }).loss)
        for name, grad in pairs(grads) do assert.is_true(grad:equal(engine:grad(name)), name) end
        assert.is_true(memory.of(lower.lower(graph, { plan = plan(given) })) < bytes(plain) * 0.25)
      end
    end)

    it('has a counterpart that offloads: the same bits, less memory of the device', function()
      local loss, grads = step(plain)
      local function memory_with(config)
        return lower.lower(graph, { plan = policies.run(graph, 'dp', { plan_ngpus = 1,
          runtime_ngpus = 1, pas_config = config }) }):memory()
      end
      local before = memory_with {}
      for _, config in ipairs { { offload_modules = 'transformer.h.*' },
        { offload_modules = 'ROOT' },
        { offload_modules = 'ROOT', recompute_modules = 'transformer.h.*' } } do
        local engine = Program.new(model(), { seed = 7, pas_policy = 'dp', pas_config = config })
        engine:prepare(sample())
        door.host_memory(true)
        local host = door.host_memory()
        assert.equal(loss, engine:train_step({ sample(), sample() }, { step = 1 }).loss)
        for name, grad in pairs(grads) do assert.is_true(grad:equal(engine:grad(name)), name) end
        local now, most = door.host_memory()
        local predicted = memory_with(config)
        assert.equal(host, now)
        assert.equal(predicted.host, most - host)
        assert.is_true(predicted.saved < 0.3 * before.saved)
        assert.is_true(predicted.peak < 0.7 * before.peak)
      end
    end)

    it('refuses what is no module, with the nearest', function()
      assert.matches("no module that makes calls matches 'transformer.g.0'.*did you mean "
        .. "'transformer.h.0'", message(plan, 'transformer.g.0'))
      assert.matches("no module that makes calls matches 'decoder.%*'", message(plan, 'decoder.*'))
      assert.matches("'pas_config.recompute_modules' is 3; expected a text or a list of texts",
        message(plan, 3))
      assert.matches("is a table; expected a text or a list of texts", message(plan, {}))
      assert.matches("pas_config.offload_modules: no module that makes calls matches 'x'",
        message(policies.run, graph, 'dp', { plan_ngpus = 1, runtime_ngpus = 1,
          pas_config = { offload_modules = 'x' } }))
      assert.matches("'plan.json' says itself what is offloaded", message(policies.check,
        'plan.json', { offload_modules = 'ROOT' }))
      assert.matches("'plan.json' says itself what is recomputed", message(policies.check,
        'plan.json', { recompute_modules = 'ROOT' }))
    end)
  end)
end)
