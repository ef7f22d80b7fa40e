--- Policies on a traced GPT: what they split, their errors, and plans as text and JSON.
local GPT = require 'nnscaler.models.gpt'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local nnscaler = require 'nnscaler'
local plans = require 'nnscaler._C.plan'
local policies = require 'nnscaler.policies'
local runs = require 'tests.lua.support.runs'
local trace = require 'nnscaler.trace'
local message = require 'tests.lua.support.message'

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

  it('leave to compute_config which states rest in shards, or say so themselves', function()
    local zero = { level = 1, groups = 2, scatter = true, undivided = false }
    local function made(policy, undivided)
      return policies.run(graph, policy, { plan_ngpus = 1, runtime_ngpus = 4, pas_config = {},
        micro_batches = 4, zero = zero, undivided = undivided })
    end
    local plan = made('dp', { 'transformer.wte.weight' })
    assert.matches('optimizer state sharded in 2 groups, sums scattered, 1 undivided', plan:text())
    assert.equal(1, plan:info().zero)
    assert.equal(plan:hash(), plans.from_json(plan:json()):hash())
    plan = made(function(g)
      g:replicate_rest()
      g:weights('*wte*', { zero = 3 })
      g:weights('*ln*', { zero = 0 })
    end)
    assert.matches('transformer.ln_f.weight zero 0.*transformer.wte.weight zero 3', plan:text())
    assert.equal(3, plan:info().zero)
    assert.matches('3 ZeRO groups of 4 scale units; expected a divisor', message(plans.from_json,
      (plan:json():gsub('"groups": 2', '"groups": 3'))))
    assert.matches('zero is 7; expected 0 to 3', message(plans.from_json,
      (plan:json():gsub('"level": 1', '"level": 7'))))
    -- Plans of before said it of weights alone.
    local old = plan:json():gsub('"format": 2', '"format": 1'):gsub('"zero": {.-\n }',
      '"weights": "sharded"')
    assert.equal(3, plans.from_json(old):info().zero)
    assert.matches('weights sharded', plans.from_json(old):text())
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
    assert.matches('%[plan.partition%] transformer.h.0.attn.c_proj aten::linear#0', text)
    assert.matches('legal: input 0 dim 0 %(length 4%)', text)
    text = message(run, function(g) g:partition(g:nodes()[1], { input = 0, dim = 0 }) end, 2)
    assert.matches('%[plan.partition%] neither a number of parts nor sizes', text)
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

  it('a plan file is a policy, for its graph and number of devices', function()
    local folder = runs.folder()
    local path = folder .. '/plan.json'
    local plan = run('tp', 2)
    base.file_write(path, plan:json())
    assert.equal(plan:json(), run(path, 2):json())
    assert.matches('2 devices, 4 ranks %(2 units%)', run(path, 2, 4):text())
    assert.equal(2, policies.devices(path))
    assert.matches('spans 2 devices, compute_config.plan_ngpus is 4', message(run, path, 4))
    assert.matches('3 ranks for a plan of 2 devices; expected a multiple', message(run, path, 2, 3))
    base.file_write(path, (plan:json():gsub('transformer.h.0.ln_1', 'transformer.h.0.norm')))
    assert.matches('operator 3 is transformer.h.0.norm aten::layer_norm#0 in the plan, '
      .. 'transformer.h.0.ln_1 aten::layer_norm#0 in the model', message(run, path, 2))
    base.file_write(path, (plan:json():gsub('"devices": %[%s+0,%s+1%s+%]', '"devices": [0, 7]', 1)))
    assert.matches('device 7; expected 0 to 1', message(run, path, 2))
    base.file_write(path, (plan:json():gsub('"stage": 0', '"stage": 3', 1)))
    assert.matches('stage 3 of 1', message(run, path, 2))
    assert.matches('none.json', message(run, folder .. '/none.json', 2))
    base.file_write(folder .. '/half.lua', 'return function(g) g:replicate_rest() end')
    assert.matches('replicate 2 on 0,1', run(folder .. '/half.lua', 2):text())
    base.file_write(folder .. '/half.lua', 'return 7')
    assert.matches('is a number; expected a function', message(run, folder .. '/half.lua', 2))
    runs.remove(folder)
  end)

  it('a list with an entry for each operator is a policy too', function()
    local function entries(g)
      local list = {}
      for i, node in ipairs(g:nodes()) do
        list[i] = { node = node, stage = node.id < 16 and 0 or 1 }
        if node.name == 'linear' then
          list[i].partition = { input = 0, dim = 0 }
          list[i].recompute = node.module
        end
      end
      return list
    end
    local plan = run(entries, 4)
    assert.matches('4 devices, .* 2 stages', plan:text())
    assert.equal(#graph:nodes(), lines(plan, ' on '))
    assert.matches('c_proj aten::linear#0 recompute 0: input 0 dim 0 into 2 on 0,1', plan:text())
    assert.matches('c_fc aten::linear#0 recompute %d+: input 0 dim 0 into 2 on 2,3', plan:text())

    local function with(change)
      return message(run, function(g)
        local list = entries(g)
        return change(list) or list
      end, 4)
    end
    assert.matches('returned a number; expected nothing, or a list', with(function() return 3 end))
    assert.matches('entry 2 names no operator', with(function(l) l[2].node = { id = 1 } end))
    assert.matches("unknown key 'split'", with(function(l) l[1].split = {} end))
    assert.matches('aten::embedding has two entries', with(function(l) l[2].node = l[1].node end))
    assert.matches('has no entry', with(function(l) l[#l] = nil end))
    assert.matches('is in stage 2 after stage 0', with(function(l)
      for _, entry in ipairs(l) do entry.stage = entry.stage * 2 end
    end))
  end)

  it('uneven parts are made where a policy asks for them', function()
    local linear = function(g) return g:select({ module = '*.c_fc' })[1] end
    local plan = run(function(g)
      g:partition(linear(g), { input = 1, dim = 0, uneven = true }, 5)
      g:replicate_rest()
    end, 5)
    assert.matches('c_fc aten::linear#0: input 1 dim 0 into 5 uneven', plan:text())
    assert.equal(plan:text(), plans.from_json(plan:json()):text())
    local text = message(run, function(g) g:partition(linear(g), { input = 1, dim = 0 }, 5) end, 5)
    assert.matches("c_fc aten::linear#0: input 1 dim 0 into 5: '%w+' is 32 long, which 5 "
      .. 'does not divide', text)
    assert.matches("is 32 long, too short for 33 parts", message(run, function(g)
      g:partition(linear(g), { input = 1, dim = 0, uneven = true }, 33)
    end, 33))
  end)

  it('parts have the sizes that a policy gives', function()
    local linear = function(g) return g:select({ module = '*.c_fc' })[1] end
    local function cut(...)
      local steps = { ... }
      return function(g)
        for _, step in ipairs(steps) do g:partition(linear(g), step) end
        g:replicate_rest()
      end
    end
    local plan = run(cut { input = 1, dim = 0, sizes = { 20, 12 } }, 2)
    assert.matches('c_fc aten::linear#0: input 1 dim 0 into sizes 20,12 on 0,1', plan:text())
    assert.equal(plan:text(), plans.from_json(plan:json()):text())
    assert.matches("sizes 20,13 are not those of 2 parts of '%w+', which is 32 long",
      message(run, cut { input = 1, dim = 0, sizes = { 20, 13 } }, 2))
    assert.matches("sizes 32,0 are not those of 2 parts",
      message(run, cut { input = 1, dim = 0, sizes = { 32, 0 } }, 2))
    assert.matches('2 sizes are given for 3 parts', message(run, function(g)
      g:partition(linear(g), { input = 1, dim = 0, sizes = { 20, 12 } }, 3)
    end, 3))
    run(function(g)
      local where = { input = 1, dim = 0, sizes = { 20, 12 }, in_turns = true }
      assert.matches('given sizes are for parts on devices of their own',
        g:refusal(linear(g), where))
      g:replicate_rest()
    end, 2)
    assert.matches("'%w+' is cut into parts of given sizes already", message(run, function(g)
      g:partition(linear(g), { input = 1, dim = 0, sizes = { 20, 12 } })
      g:partition(linear(g), { input = 1, dim = 0 }, 2)
    end, 4))
    assert.matches("'%w+' is cut already; sizes are given with the first cut",
      message(run, function(g)
        g:partition(linear(g), { input = 1, dim = 0 }, 2)
        g:partition(linear(g), { input = 1, dim = 0, sizes = { 20, 12 } })
      end, 4))
  end)

  it('names frozen and unknown dimensions', function()
    local function cut(op, where)
      return message(run, function(g) g:partition(g:select({ op = op })[1], where, 2) end, 2)
    end
    assert.matches('layer_norm#0: input 0 dim 2 into 2: dim 2 of input 0 is never split.*legal: '
      .. 'input 0 dim 0 %(length 4%)', cut('layer_norm', { input = 0, dim = 2 }))
    assert.matches('input 0 dim 7 into 2: dim 7 of input 0 is never split',
      cut('linear', { input = 0, dim = 7 }))
    assert.matches('input 9 dim 0 into 2: dim 0 of input 9 is never split',
      cut('linear', { input = 9, dim = 0 }))
  end)

  it('parts of one device stand in a row', function()
    local lower = require 'nnscaler._C.lower'
    local function with(devices)
      return message(function()
        local plan = run(function(g)
          local node = g:select({ op = 'linear' })[1]
          g:partition(node, { input = 0, dim = 0 }, 4)
          g:assign(node, devices)
          g:replicate_rest()
        end, 2)
        lower.lower(graph, { plan = plan })
      end)
    end
    assert.matches('c_proj aten::linear#0 runs on devices 0,1,0,1; expected each device as often, '
      .. 'its parts in a row', with { 0, 1, 0, 1 })
    assert.matches('runs on devices 0,0,1,0', with { 0, 0, 1, 0 })
    assert.matches('4 parts on 3 devices; expected one device a part', with { 0, 0, 1 })
    assert.matches('device 2; expected 0 to 1', with { 0, 0, 1, 2 })
  end)

  it('finds the marks of a model', function()
    local marked = trace(function(x)
      nnscaler.anchor 'begin'
      local y = x:relu()
      nnscaler.anchor 'head'
      return (y * 2):sum()
    end, { T.ones { 2 } }, { training = false })
    local g = require('nnscaler.policies.handle').new(marked, { plan_ngpus = 1, runtime_ngpus = 1 })
    assert.equal('relu', g:anchor('begin').name)
    assert.equal('mul', g:anchor('head').name)
    assert.equal(1, #g:anchor('head', true))
    assert.matches("no call follows an anchor 'tail'", message(g.anchor, g, 'tail'))
    nnscaler.anchor 'nowhere' -- outside of a trace it does nothing
  end)

  it('tells parameters, their readers and modules', function()
    run(function(g)
      local params = g:params()
      assert.equal('transformer.wte.weight', params[1].name)
      assert.same({ 16, 8 }, params[1].shape)
      local readers = {}
      for i, node in ipairs(params[1].consumers) do readers[i] = node.name end
      assert.same({ 'embedding', 'linear' }, readers) -- tied
      local layer = g:module 'transformer.h.1'
      assert.equal(g:select({ module = 'transformer.h.1.ln_1' })[1], layer:op 'ln_1')
      assert.equal(#g:select { module = 'transformer.h.1*' }, #layer:nodes())
      assert.equal('transformer.h.1.mlp.c_fc', layer:child('mlp'):child('c_fc').path)
      assert.equal('transformer.h.1.attn.c_attn.weight', layer:child('attn'):params()[1].name)
      assert.equal(#g:nodes(), #g:module(''):nodes())
      g:replicate_rest()
    end, 1)
    assert.matches("module 'transformer.h.0.mlp.none' makes no call", message(run, function(g)
      g:module('transformer.h.0'):op 'mlp.none'
    end, 1))
  end)

  describe('schedule', function()
    local function pipeline(devices, schedule, micro_batches)
      return message(run, function(g)
        local nodes, first = g:nodes(), {}
        for i = 2, #devices do first[i - 1] = nodes[3 * i] end
        g:stage(first, devices)
        g:schedule(schedule, micro_batches)
        g:replicate_rest()
      end, 2)
    end

    it('several stages a rank lie where the schedule wants them', function()
      local plan = run('pp', 2, 2, { pipeline_scheduler = '1f1b_interleaved' })
      assert.same({ { 0 }, { 1 }, { 0 }, { 1 } }, plan:info().stages)
      plan = run('pp', 2, 2, { pipeline_scheduler = 'zbv' })
      assert.same({ { 0 }, { 1 }, { 1 }, { 0 } }, plan:info().stages)
      local wrong = pipeline({ { 0 }, { 1 }, { 0 }, { 1 } }, 'zbv')
      assert.matches("'zbv': stage 2 lies on devices 0; expected those of pipeline rank 1 %(1%)",
        wrong)
      wrong = pipeline({ { 0 }, { 1 }, { 0 } }, '1f1b_interleaved')
      assert.matches('3 stages on 2 pipeline ranks; expected equally many a rank', wrong)
      assert.matches("'1f1b': 4 stages on 2 pipeline ranks; expected 2",
        pipeline({ { 0 }, { 1 }, { 0 }, { 1 } }, '1f1b'))
      assert.matches("'1f1b': stage 0 lies on devices 0,1, of which other stages have some; "
        .. 'expected the same devices or none in common.*order such stages by a custom schedule',
        pipeline({ { 0, 1 }, { 0 } }, '1f1b'))
    end)

    it('a number of micro-batches that it cannot do with is refused', function()
      assert.matches('1f1b_interleaved: 3 micro%-batches on 2 pipeline ranks',
        pipeline({ { 0 }, { 1 }, { 0 }, { 1 } }, '1f1b_interleaved', 3))
      assert.matches('chimera: 2 pipeline ranks and 3 micro%-batches; expected both even',
        pipeline({ { 0 }, { 1 } }, 'chimera', 3))
      assert.matches("'infer' has no backward", pipeline({ { 0 }, { 1 } }, 'infer'))
      assert.matches('pas_config.pipeline_nmicros is 8; a step has 4',
        message(run, 'pp', 2, 2, { pipeline_nmicros = 8 }))
    end)

    it('a custom one is checked', function()
      local two = { { 0 }, { 1 } }
      local function custom(...)
        return pipeline(two, { name = 'custom', orders = { ... }, micro_batches = 2 })
      end
      assert.matches('rank 1 waits for ever at B0 of stage 1: F0 of stage 1 never ends before it',
        custom('F0 F1 B0 B1', 'B0 F0 F1 B1'))
      assert.matches('F1 of stage 1 never runs', custom('F0 F1 B0 B1', 'F0 B0'))
      assert.matches('B1 of stage 0 runs twice', custom('F0 F1 B0 B1 B1', 'F0 B0 F1 B1'))
      assert.matches("rank 0 runs 'G0'; expected F, B or W", custom('G0', 'F0'))
      assert.matches('1 orders for 2 pipeline ranks', custom('F0 F1 B0 B1'))
      assert.matches('orders is a nil', pipeline(two, { name = 'custom' }))
      local plan = run(function(g)
        g:stage({ g:nodes()[9] }, two)
        g:schedule { name = 'custom', micro_batches = 2,
          orders = { { 'F0', 'F1', 'B0', 'B1' }, 'F0 B0 F1 B1' } }
        g:replicate_rest()
      end, 2)
      assert.same(plan:text(), plans.from_json(plan:json()):text())
      assert.matches('rank 1: F0 B0 F1 B1', plan:text())
      assert.equal(4, #plan:order(1, 2))
      assert.equal(2, #plan:order(1, 1))
      assert.matches("'custom' orders 2 micro%-batches; the step has 3",
        message(plan.order, plan, 1, 3))
    end)
  end)
end)
