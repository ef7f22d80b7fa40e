-- Precision of a job: names, masters of 16-bit weights, the scale of the loss.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler._C.checkpoint'
local comm = require 'nnscaler._C.comm'
local loss_scale = require 'nnscaler.trainer.loss_scale'
local message = require 'tests.lua.support.message'
local nnscaler = require 'nnscaler'
local optim = require 'nnscaler.optim'
local precision = require 'nnscaler.precision'
local runs = require 'tests.lua.support.runs'
local sorted = require 'nnscaler.sorted'

local folder
before_each(function() folder = runs.folder() end)
after_each(function() runs.remove(folder) end)

local function job(changes)
  local t = {
    model = { type = 'mlp', args = { sizes = { 8, 16, 3 } } },
    dataset = nnscaler.data.random_samples { size = 32, width = 8, classes = 3 },
    micro_batch_size = 4, max_train_steps = 6, seed = 7, gen_savedir = folder .. '/gen',
    optimizer = { type = 'adamw', args = { lr = 0.01 } },
  }
  for key, value in sorted.sorted_pairs(changes) do t[key] = value end
  return t
end

local function dtypes(t)
  local p, sample = t.engine.parameters[1], t.train_loader:get(0)
  return p.data.dtype .. ' ' .. (sample.x or sample[1]).dtype
end

describe('a precision', function()
  it('has the dtypes of its name', function()
    local function says(name, parameter, autocast, scaled)
      local p = precision.of(name)
      assert.same({ parameter, parameter, parameter, autocast, scaled or false },
        { p.parameter, p.buffer, p.input, p.autocast, p.scaled })
    end
    for _, name in ipairs { 'bf16', 'bf16-true' } do says(name, 'bfloat16') end
    for _, name in ipairs { 'fp16', '16-true' } do says(name, 'float16', nil, true) end
    for _, name in ipairs { 'fp32', '32-true' } do says(name, 'float32') end
    for _, name in ipairs { 'fp64', '64-true' } do says(name, 'float64') end
    says('bf16-mixed', 'float32', 'bfloat16')
    says('16-mixed', 'float32', 'float16', true)
    assert.same({ scaled = false }, precision.of 'none')
    assert.same({ scaled = false }, precision.of(nil))
    assert.same({ parameter = 'bfloat16', input = 'float32', scaled = false },
      precision.of { parameter = 'bf16', input = 'fp32', buffer = 'none', gradient = 'fp32' })
  end)

  it('is refused with the nearest', function()
    assert.matches("'bf16%-mixd' is no precision.*did you mean 'bf16%-mixed'",
      message(precision.of, 'bf16-mixd'))
    assert.matches("unknown key 'precision.parametr'.*did you mean 'parameter'",
      message(precision.of, { parametr = 'bf16' }))
    assert.matches("precision.input is 'fp8'; expected fp64, fp32, bf16, fp16 or none",
      message(precision.of, { input = 'fp8' }))
    assert.matches('precision.gradient is bf16, and gradients of bf16 parameters are summed in '
      .. 'float32', message(precision.of, { parameter = 'bf16', gradient = 'bf16' }))
    assert.matches('precision.reduce is bf16, and gradients of fp32 parameters are summed in '
      .. 'float32', message(precision.of, { reduce = 'bf16' }))
    assert.matches("'precision' is the text 'fp31'; expected one of none | .*did you mean 'fp32'",
      message(runs.trainer, job { precision = 'fp31' }))
  end)

  local function losses_of(name, eager)
    local losses = {}
    local t = runs.trainer(job { precision = name, eager = eager, max_train_steps = 20,
      hook = { on_step_end = function(_, step, metrics) losses[step] = metrics.train_loss end } })
    t:run()
    return losses, t
  end

  for _, eager in ipairs { true, false } do
    for name, expected in sorted.sorted_pairs { bf16 = 'bfloat16 bfloat16',
      ['bf16-mixed'] = 'float32 float32', fp16 = 'float16 float16',
      ['16-mixed'] = 'float32 float32' } do
      it(('%s learns as float32 does, %s'):format(name, eager and 'eagerly' or 'as a program'),
        function()
          local want = losses_of('fp32', eager)
          local got, t = losses_of(name, eager)
          assert.equal(expected, dtypes(t))
          local worst = 0
          -- float16 first finds the scale of its loss
          for step = precision.of(name).scaled and 99 or 1, 20 do
            worst = math.max(worst, math.abs(got[step] - want[step]))
          end
          assert.is_true(worst < 0.02, tostring(worst))
          assert.is_true(math.abs(got[20] - want[20]) < 0.3)
          assert.is_false(got[20] == want[20])
        end)
    end
  end

  it('may be a table', function()
    local t = runs.trainer(job { precision = { parameter = 'bf16', input = 'bf16' } })
    t:run()
    assert.equal('bfloat16 bfloat16', dtypes(t))
  end)
end)

describe('masters', function()
  local function weights()
    return { { name = 'norm', data = T.ones({ 3 }, { dtype = 'bfloat16' }), requires_grad = true } }
  end
  local function moved(kind, args)
    local list = weights()
    local optimizer = optim.new({ type = kind, args = args }, list)
    for _ = 1, 100 do
      optimizer:collect(function() return T.ones({ 3 }, { dtype = 'float32' }) end)
      optimizer:step(optimizer.lr)
    end
    return 1 - list[1].data:to('float32'):select(0, 0):item(), optimizer
  end

  it('let small steps add up', function() -- 1 - 1e-4 is 1 in bfloat16
    assert.is_true(math.abs(moved('adamw', { lr = 1e-4, weight_decay = 0 }) - 0.01) < 4e-3)
    assert.is_true(math.abs(moved('sgd', { lr = 1e-4 }) - 0.01) < 4e-3)
    assert.is_true(math.abs(moved('mixed_precision_adamw', { lr = 1e-4, weight_decay = 0 }) - 0.01)
      < 4e-3)
    assert.equal(0, (moved('adamw', { lr = 1e-4, weight_decay = 0, master = false })))
  end)

  it('are slots: declared, counted, and their moments have their dtype', function()
    local _, optimizer = moved('adamw', {})
    local names = {}
    for i, slot in ipairs(optimizer:declared()) do
      names[i] = slot.name .. ' ' .. slot.dtype
    end
    assert.same({ 'master float32', 'exp_avg float32', 'exp_avg_sq float32' }, names)
    assert.equal(3 * 3 * 4, require('nnscaler.optim.slots').bytes(optimizer))
    local _, plain = moved('adamw', { master = false })
    assert.equal(2 * 3 * 2, require('nnscaler.optim.slots').bytes(plain))
  end)

  it('are refused where they contradict', function()
    assert.matches('mixed_precision_adamw keeps masters',
      message(moved, 'mixed_precision_adamw', { master = false }))
    assert.matches('master is 3; expected true or false', message(moved, 'sgd', { master = 3 }))
    assert.matches('fused is false; expected true', message(moved, 'adamw', { fused = false }))
  end)

  it('are in checkpoints, and a resumed run repeats bit for bit', function()
    local function run(changes)
      local losses = {}
      changes.hook = { on_step_end = function(_, step, m) losses[step] = m.train_loss end }
      changes.precision, changes.eager = 'bf16', false
      local t = runs.trainer(job(changes))
      t:run()
      return losses, t
    end
    local whole, a = run { max_train_steps = 8 }
    run { max_train_steps = 8, stop_after_steps = 4, checkpoint = { save_dir = folder .. '/ck' } }
    local rest, b = run { max_train_steps = 8,
      checkpoint = { save_dir = folder .. '/ck', resume_from = 'last' } }
    for step = 5, 8 do assert.equal(whole[step], rest[step]) end
    for i, p in ipairs(a.engine.parameters) do
      assert.is_true(p.data:equal(b.engine.parameters[i].data))
    end
    local file = checkpoint.read_safetensors(b.last_checkpoint .. '/optimizer.safetensors')
    for _, p in ipairs(b.engine.parameters) do
      local master = file:read(p.name .. '/master')
      assert.equal('float32', master.dtype)
      assert.is_true(master:to('bfloat16'):equal(p.data:detach()))
    end
  end)
end)

describe('the scale of the loss', function()
  it('halves with overflows and doubles after many good steps', function()
    local scale = loss_scale.new { factor = 8, good = 0 }
    assert.is_true(scale:step(false))
    assert.equal(4, scale.factor)
    for _ = 1, 2000 do scale:step(true) end
    assert.same({ factor = 8, good = 0 }, scale:state())
    assert.is_false(loss_scale.new({ factor = 1, good = 9 }):step(false))
  end)

  it('skips steps that overflow, says so, and lies in checkpoints', function()
    local scales, weights = {}, {}
    local function run(changes)
      changes.precision = '16-mixed'
      changes.model = { type = 'mlp', args = { sizes = { 8, 16, 3 } } }
      changes.hook = {
        after_setup = function(t)
          if t.step == 0 then t.loss_scale.factor = 2 ^ 40 end
        end,
        on_step_end = function(t, step, metrics)
          scales[step], weights[step] = metrics.loss_scale, t.engine.parameters[1].data:tolist()
        end,
      }
      local t = runs.trainer(job(changes))
      t:run()
      return t
    end
    local t = run { max_train_steps = 40, stop_after_steps = 3,
      checkpoint = { save_dir = folder .. '/ck' } }
    assert.same({ 2 ^ 40, 2 ^ 39, 2 ^ 38 }, scales)
    assert.same(weights[1], weights[3])
    assert.matches('gradients overflow at a loss scale of 1.09951e%+12: no update, 5.49756e%+11',
      table.concat(t.lines, '\n'))
    run { max_train_steps = 40, checkpoint = { save_dir = folder .. '/ck', resume_from = 'last' } }
    assert.equal(2 ^ 37, scales[4])
    assert.is_true(scales[40] < 2 ^ 37)
    assert.is_false(weights[40][1][1] == weights[3][1][1])
  end)

  for _, case in ipairs { { policy = 'dp', plan = 1, rank = 1 },
    { policy = 'fsdp', plan = 1, rank = 1 }, { policy = 'tp', plan = 2, rank = 1 },
    { policy = 'pp', plan = 2, rank = 0 } } do
    for _, name in ipairs { 'fp16', '16-mixed' } do
      it(('is one on all ranks, and so is the step that is skipped: %s, %s'):format(name,
        case.policy), function()
        case.precision = name
        local ranks = comm.run_local(2, 'tests.lua.support.loss_scale_rank', base.json_encode(case))
        for r, text in ipairs(ranks) do ranks[r] = base.json_decode(text) end
        assert.is_true(ranks[1].weights[1] ~= 0)
        for _, rank in ipairs(ranks) do
          assert.same({ 64, 64, 64, 32, 32, 32 }, rank.scales)
          assert.equal(rank.weights[3], rank.weights[4])
          local holds = rank.weights[1] ~= 0 -- under pp all weights may be of one stage
          assert.equal(holds, rank.weights[4] ~= rank.weights[5])
          assert.equal(holds, rank.weights[2] ~= rank.weights[3])
        end
      end)
    end
  end

  it('leaves a loss that is no number to on_nan', function()
    local t = runs.trainer(job { precision = '16-mixed', hook = {
      after_setup = function(t)
        T.no_grad(function() t.engine.parameters[1].data:fill_(0 / 0) end)
      end,
    } })
    assert.matches('train_loss is', message(function() t:run() end))
  end)
end)
