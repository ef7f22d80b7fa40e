--- Policies on a traced GPT: what they split, their errors, and plans as text and JSON.
local GPT = require 'nnscaler.models.gpt'
local T = require 'nnscaler.tensor'
local plans = require 'nnscaler._C.plan'
local policies = require 'nnscaler.policies'
local trace = require 'nnscaler.trace'

local function gpt_graph()
  local model = GPT { vocab = 16, layers = 2, heads = 2, width = 8, block = 4 }
  local x = T.zeros({ 4, 4 }, { dtype = 'int64' })
  return (trace(model, { x, x }, { training = true }))
end

local graph = gpt_graph()

local function run(policy, plan, runtime, pas)
  return policies.run(graph, policy, {
    plan_ngpus = plan, runtime_ngpus = runtime or plan, pas_config = pas or {}, micro_batches = 4,
  })
end

local function message(f, ...)
  local ok, e = pcall(f, ...)
  assert.is_false(ok)
  return tostring(e)
end

-- Lines of the plan's text that contain `what`.
local function lines(plan, what)
  local n = 0
  for line in plan:text():gmatch('[^\n]+') do
    if line:find(what, 1, true) then n = n + 1 end
  end
  return n
end

describe('policies', function()
  it('dp puts everything on the one device of each unit', function()
    local plan = run('dp', 1, 4)
    assert.matches('1 devices, 4 ranks %(4 units%)', plan:text())
    assert.equal(#graph:nodes(), lines(plan, 'on 0'))
    assert.matches('plan_ngpus is 2; expected 1', message(run, 'dp', 2))
  end)

  it('fsdp is dp with sharded weights', function()
    assert.matches('weights sharded', run('fsdp', 1, 2):text())
  end)

  it('tp cuts every operator that can be cut, alike in every process', function()
    local plan = run('tp', 2)
    local cuttable, handle = 0, require('nnscaler.policies.handle')
    local g = handle.new(graph, { plan_ngpus = 2, runtime_ngpus = 2 })
    for _, node in ipairs(g:nodes()) do
      for _, place in ipairs(g:choices(node)) do
        if not g:refusal(node, place, 2) then
          cuttable = cuttable + 1
          break
        end
      end
    end
    assert.is_true(cuttable > #graph:nodes() * 0.7)
    assert.equal(cuttable, lines(plan, ' into 2'))
    assert.equal(plan:hash(), run('tp', 2):hash())
    assert.not_equal(plan:hash(), run('tp', 2, 2, { seed = 7 }):hash())
  end)

  it('data cuts dimension 0 of the first operand where it can', function()
    local plan = run('data', 2)
    assert.is_true(lines(plan, 'input 0 dim 0 into 2') > 10)
    assert.equal(0, lines(plan, 'input 1'))
  end)

  it('pp and hybrid make stages of consecutive operators', function()
    local plan = run('pp', 4)
    for s = 0, 3 do assert.is_true(lines(plan, 'stage ' .. s .. ' ') > 0) end
    assert.matches('4 stages, schedule 1f1b', plan:text())
    local hybrid = run('hybrid', 4, 8, { pipeline_nstages = 2, pipeline_scheduler = 'gpipe' })
    assert.matches('2 units%), 2 stages, schedule gpipe', hybrid:text())
    assert.is_true(lines(hybrid, 'on 2,3') > 0)
    local odd = message(run, 'hybrid', 4, 4, { pipeline_nstages = 3 })
    assert.matches('3 stages on plan_ngpus = 4', odd)
  end)

  it('a user policy calls the same primitives', function()
    local plan = run(function(g, cfg)
      for mlp in g:modules('*.mlp') do
        g:partition(mlp:op('c_fc'), { input = 1, dim = 0 }, cfg.plan_ngpus)
        g:partition(mlp:op('c_proj'), { input = 0, dim = -1 }, cfg.plan_ngpus)
      end
      g:replicate_rest()
    end, 2)
    assert.equal(2, lines(plan, 'c_fc aten::linear#0: input 1 dim 0 into 2'))
    assert.equal(2, lines(plan, 'c_proj aten::linear#0: input 0 dim 2 into 2'))
  end)

  it('names operator, dimension and legal choices of a split that does not fit', function()
    local text = message(run, function(g)
      g:partition(g:select({ op = 'linear' })[1], { input = 0, dim = 0 }, 3)
    end, 3)
    assert.matches('%[plan.partition%] transformer.h.0.attn.c_attn aten::linear#0', text)
    assert.matches('legal: input 0 dim 0 %(length 4%)', text)
  end)

  it('refuses plans with operators that nobody placed, or idle devices', function()
    assert.matches('has no device', message(run, function() end, 2))
    assert.matches('device 1 of 2 has no operator', message(run, function(g)
      for _, node in ipairs(g:nodes()) do
        g:replicate(node, 1)
        g:assign(node, { 0 })
      end
    end, 2))
    assert.matches('runtime_ngpus to be a multiple of plan_ngpus', message(run, 'tp', 2, 3))
    assert.matches('the builtin ones are dp', message(run, 'no.such.policy', 1))
  end)

  it('a plan loads from its JSON and fits only its graph', function()
    local plan = run('tp', 2)
    local again = plans.from_json(plan:json())
    assert.equal(plan:text(), again:text())
    again:match(graph)
    local other = GPT { vocab = 16, layers = 1, heads = 2, width = 8, block = 4 }
    local x = T.zeros({ 4, 4 }, { dtype = 'int64' })
    local small = trace(other, { x, x }, { training = true })
    assert.matches('the plan is for another graph', message(again.match, again, small))
  end)
end)
