-- Fields of a job that say how a step is reduced, where samples come from and what is done around a
-- run: each changes what it says it changes.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local jobs = require 'nnscaler.job'
local message = require 'tests.lua.support.message'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local runs = require 'tests.lua.support.runs'

-- The loss of a sample x with weight w is w·x, a mean or a sum over its micro-batch; with tokens,
-- as many as the sample says.
local Line = nn.class 'Line'
function Line:init(args)
  self.args = args or {}
  self.w = nn.Parameter { shape = {}, dtype = 'float64', init = nn.init.ones() }
end
function Line:forward(sample)
  local losses = self.w * sample.x
  local loss = self.args.sums and losses:sum() or losses:mean()
  if self.args.silent then return loss end
  return loss, { tokens = sample.tokens:sum() }
end

local kX, kTokens = { 1, 2, 4, 8, 16, 32 }, { 1, 3, 2, 5, 4, 1 }
local line = {
  len = function() return 6 end,
  get = function(_, i)
    return { x = T.tensor(kX[i + 1], { dtype = 'float64' }),
      tokens = T.tensor(kTokens[i + 1], { dtype = 'float64' }) }
  end,
}

local function job(changes)
  local t = {
    model = function() return Line() end, dataset = line, micro_batch_size = 2,
    grad_accumulation_steps = 3, max_train_steps = 1,
    dataset_sampler = { train_args = { shuffle = false } },
    optimizer = { type = 'sgd', args = { lr = 1 } }, eager = true,
  }
  for key, value in pairs(changes or {}) do t[key] = value end -- luacheck: ignore
  return t
end

-- Loss of a step, and what it took from the weight: the gradient.
local function step(changes)
  local losses, gradients, folder = {}, {}, runs.folder()
  for i, eager in ipairs { true, false } do
    changes.eager, changes.gen_savedir = eager, folder
    local t = runs.trainer(job(changes))
    losses[i] = t:run().train_loss
    gradients[i] = 1 - t.engine.parameters[1].data:item()
  end
  runs.remove(folder)
  assert.equal(losses[1], losses[2])
  assert.equal(gradients[1], gradients[2])
  return losses[1], gradients[1]
end

local function near(want, got) assert.is_true(math.abs(want - got) < 1e-12 * want, got) end

describe('the reduction', function()
  local function optimizer(of_loss, of_gradients, more)
    local o = { type = 'sgd', args = { lr = 1 }, loss_reduction = of_loss,
      grad_reduction = of_gradients }
    for key, value in pairs(more or {}) do o[key] = value end -- luacheck: ignore
    return o
  end

  it('is the mean by tokens, unless a job says otherwise', function()
    -- Micro-batches: means 1.5, 6, 24 with 4, 7 and 5 tokens.
    local mean = (4 * 1.5 + 7 * 6 + 5 * 24) / 16
    local loss, gradient = step {}
    near(mean, loss)
    near(mean, gradient)
    loss, gradient = step { model = function() return Line { silent = true } end }
    near(10.5, loss)
    near(10.5, gradient)
  end)

  it('may be the sum, of losses and of gradients apart', function()
    local mean = (4 * 1.5 + 7 * 6 + 5 * 24) / 16
    local loss, gradient = step { optimizer = optimizer('sum', 'mean') }
    near(31.5, loss)
    near(mean, gradient)
    loss, gradient = step { optimizer = optimizer('mean', 'sum') }
    near(mean, loss)
    near(31.5, gradient)
  end)

  it('may be per token, of losses that are sums', function()
    local loss, gradient = step { model = function() return Line { sums = true } end,
      optimizer = optimizer('per-token-mean', 'per-token-mean') }
    near(63 / 16, loss)
    near(63 / 16, gradient)
    local t = runs.trainer(job { model = function() return Line { silent = true } end,
      optimizer = optimizer('per-token-mean', 'mean') })
    local said = message(t.run, t)
    assert.matches('%[trainer.reduction%] per%-token%-mean, but forward does not tell its tokens',
      said)
  end)

  it('goes by what a function makes of the outputs', function()
    local seen
    local function aggregate(outputs)
      local sum, tokens = 0, 0
      for _, output in ipairs(outputs) do
        sum, tokens = sum + output[1], tokens + output[2].tokens:item()
      end
      return { loss_sum = sum, num_batches = 2, num_tokens = 2 * tokens, batches = #outputs }
    end
    local loss, gradient = step {
      model = function() return Line { sums = true } end,
      optimizer = optimizer('mean', 'per-token-mean', { aggregate_outputs_fn = aggregate }),
      hook = { after_aggregate_train_step_outputs = function(_, result)
        seen = result.aggregated
      end },
    }
    near(63 / 2, loss)
    near(63 / 32, gradient)
    assert.equal(3, seen.batches)
    local t = runs.trainer(job { optimizer = optimizer('mean', 'mean',
      { aggregate_outputs_fn = function() return { 3 } end }) })
    assert.matches("it returned a number as '1'; expected a table of numbers by name",
      message(t.run, t))
  end)
end)

describe('samples', function()
  it('come through loaders and samplers of the job', function()
    local ids = {}
    local sampler = function(options)
      assert.equal(5, options.seed)
      return { index = function(_, _, position, size) return size - 1 - position end }
    end
    local t = runs.trainer(job {
      seed = 5, dataset_sampler = { type = sampler },
      dataloader = { train_args = { drop_last = true, collate_fn = function(samples)
        return { x = samples[1].x:reshape { 1 }, tokens = samples[1].tokens:reshape { 1 } }
      end } },
      hook = { on_train_step_start = function(trainer)
        for k = 0, 2 do ids[#ids + 1] = trainer.train_loader:ids(k) end
      end },
    })
    near((4 * 8 + 5 * 2 + 1 * 32 - 0) / 10, (function()
      t:run()
      return (1 * 32 + 5 * 8 + 3 * 2) / 9 + (4 * 8 + 5 * 2 + 1 * 32) / 10 - t.train_loss
    end)())
    assert.same({ { 5, 4 }, { 3, 2 }, { 1, 0 } }, ids)
  end)

  it('are made by a loader of the job', function()
    local asked = {}
    local t = runs.trainer(job {
      dataloader = { type = function(options)
        asked[#asked + 1] = ('%s %d %s'):format(options.stage, options.batch,
          tostring(options.speed))
        return nnscaler.data.loader { dataset = options.dataset, batch = options.batch }
      end, train_args = { speed = 'fast' } },
      dataset = { type = function() return line end, train_args = {}, val_args = {},
        test_args = {} },
    })
    local lines = {}
    t.args.log = { { setup = function() end, finalize = function() end,
      log_metrics = function(_, metrics, _, options)
        lines[#lines + 1] = options.tag .. ' ' .. tostring(metrics.test_loss)
      end } }
    t:run()
    assert.same({ 'train 2 fast', 'val 2 fast', 'test 2 fast' }, asked)
    -- The one step has moved the weight from 1 to 1 − 10.5.
    assert.matches('^test %-99%.', lines[#lines])
    assert.matches('Test after 1 steps: test_loss=%-99%.', table.concat(t.lines, '\n'))
  end)

  it('are refused sizes and options that the job does not leave to loaders', function()
    local function said(changes)
      local t = runs.trainer(job(changes))
      return message(t.run, t)
    end
    assert.matches("%[trainer.dataloader%] dataloader.train_args has the key 'batch_size'",
      said { dataloader = { train_args = { batch_size = 3 } } })
    assert.matches("unknown option 'speed'", said { dataloader = { train_args = { speed = 3 } } })
    assert.matches('%[data.loader%] num_workers = 2 of a data set that only this Lua state has',
      said { dataloader = { train_args = { num_workers = 2 } } })
    assert.matches('the sampler is a number without index', said { dataset_sampler = {
      type = function() return 3 end } })
    assert.matches("%[data.windows%] option 'num_workers' of a loader of windows", said {
      dataset = nnscaler.data.characters(nnscaler.data.shakespeare, { block = 8 }),
      dataloader = { train_args = { num_workers = 1 } }, dataset_sampler = nil })
  end)
end)

describe('around a run', function()
  local folder
  before_each(function() folder = runs.folder() end)
  after_each(function() runs.remove(folder) end)

  it('a function makes the environment, another the sample to trace with', function()
    local calls = {}
    local t = runs.trainer(job {
      eager = false, gen_savedir = folder, instance_name = 'mine', deterministic = false,
      init_env_fn = function(trainer) calls[#calls + 1] = trainer.rank end,
      dummy_sample_gen_fn = function(args)
        calls[#calls + 1] = args.micro_batch_size
        return { x = T.ones({ 2 }, { dtype = 'float64' }),
          tokens = T.ones({ 2 }, { dtype = 'float64' }) }
      end,
    })
    t:run()
    assert.same({ 0, 2 }, calls)
    assert.equal('file', base.file_exists(folder .. '/Line_mine/gencode0.lua'))
    t = runs.trainer(job { eager = false, dummy_sample_gen_fn = function() end })
    assert.matches('dummy_sample_gen_fn returned nothing; expected a micro%-batch',
      message(t.run, t))
  end)

  it('utilisation is what a step computes beside what devices can', function()
    local metrics
    local width, steps = 64, 3
    local t = runs.trainer {
      model = { type = 'mlp', args = { sizes = { width, width, 3 } } }, micro_batch_size = 4,
      dataset = nnscaler.data.random_samples { size = 400, width = width, classes = 3 },
      grad_accumulation_steps = 2, max_train_steps = steps, optimizer = { type = 'sgd' },
      eager = false, gen_savedir = folder, peak_tflops = 2e-3,
      hook = { on_step_end = function(_, _, m) metrics = m end },
    }
    t:run()
    local products = 2 * 4 * (width * width + width * 3)
    local flops = t.engine.flops
    assert.is_true(flops >= products and flops < 1.1 * products, flops)
    near(3 * flops * 2 / (2e9 * metrics.step_s), metrics.mfu)
  end)

  it('keys that mean nothing here are taken at their neutral value only', function()
    local function said(config)
      return message(jobs.from_table, job { compute_config = config })
    end
    assert.matches("'compute_config.use_end2end' is false; only true is taken: a job trains the "
      .. 'whole model', said { use_end2end = false })
    assert.matches("'compute_config.inference_only' is true; only false is taken: a job trains",
      said { inference_only = true })
    assert.matches("'compute_config.constant_folding' is true; only false is taken",
      said { constant_folding = true })
    assert.matches("'compute_config.trace_strategy' is the text 'cpu'; only the text "
      .. "'cuda_run_cpu_offload' is taken: tracing runs no operator",
      said { trace_strategy = 'cpu' })
    local made = jobs.from_table(job { compute_config = { use_end2end = true,
      inference_only = false, constant_folding = false, trace_strategy = 'cuda_run_cpu_offload',
      user_config = { flag = 1 } } })
    assert.equal(1, made.compute_config.user_config.flag)
  end)

  it('weights have two names, which have to agree', function()
    local made = jobs.from_table(job { tracing_from_weights = 'a.safetensors' })
    assert.equal('a.safetensors', made.checkpoint.init_from)
    assert.matches("tracing_from_weights is 'a', checkpoint.init_from is 'b'; expected one of them",
      message(jobs.from_table, job { tracing_from_weights = 'a',
        checkpoint = { init_from = 'b' } }))
  end)

  it('arguments that nobody declares are refused with the nearest', function()
    local hooks, loggers = require 'nnscaler.hooks', require 'nnscaler.loggers'
    local schedules = require 'nnscaler.schedules'
    local function of_optimizer(args)
      return require('nnscaler.optim').new({ type = 'adamw', args = args }, {})
    end
    local cases = {
      { 'weight_decay', of_optimizer, { weight_deca = 1 } },
      { 'on_step_end', hooks.new, { on_step_ends = print } },
      { 'path', loggers.new, { { type = 'csv', args = { pth = 'x' } } } },
      { 'path', loggers.new, { { type = 'jsonl', args = { paths = 'x' } } } },
      { 'root_dir', loggers.new, { { type = 'tensorboard', args = { rootdir = 'x' } } } },
      { 'drop_last', nnscaler.data.loader, { dataset = line, batch = 1, droplast = true } },
      { 'width', nnscaler.data.random_samples, { widht = 3 } },
      { 'min_lr', function(args)
        return schedules.new({ type = 'cosine', args = args }, { lr = 1, total_steps = 3 })
      end, { min_l = 0 } },
      { 'validation', function(args)
        return nnscaler.data.characters(nnscaler.data.shakespeare, args)
      end, { block = 8, validaton = 0.1 } },
      { 'pas_config.pipeline_nmicros', function(args)
        return require('nnscaler.policies').check('pp', args)
      end, { pipeline_nmicro = 4 } },
      { 'optimizer.clip_gnorm', function(args)
        return jobs.from_table(job { optimizer = args })
      end, { type = 'sgd', clip_gnrm = 1 } },
    }
    for _, case in ipairs(cases) do
      local said = message(case[2], case[3])
      assert.is_truthy(said:find(("did you mean '%s'?"):format(case[1]), 1, true), said)
    end
    assert.matches('%[log.csv%] path is missing; expected the name of a file',
      message(loggers.new, { { type = 'csv' } }))
    assert.matches('%[log.jsonl%] path is a number; expected the name of a file',
      message(loggers.new, { { type = 'jsonl', args = { path = 3 } } }))
  end)

  it('what cannot be timed is refused', function()
    local t = runs.trainer(job { eager = true, profile = { file = folder .. '/p' } })
    assert.matches('%[profile.file%] eager=true has no program', message(t.run, t))
  end)
end)
