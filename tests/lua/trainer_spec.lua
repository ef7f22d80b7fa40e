-- Whole runs of the trainer on the eager engine.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local message = require 'tests.lua.support.message'
local runs = require 'tests.lua.support.runs'

local function samples(size, seed)
  return nnscaler.data.random_samples { size = size, width = 8, classes = 3, seed = seed }
end

-- A job with everything that must survive a resume: dropout, accumulation, epochs that do not
-- divide, warm-up, evaluation.
local function job(changes)
  local t = {
    model = { type = 'mlp', args = { sizes = { 8, 16, 3 }, dropout = 0.1 } },
    dataset = function() return { train = samples(23), val = samples(9, 1) } end,
    micro_batch_size = 2, grad_accumulation_steps = 2, max_train_steps = 20,
    val_every_n_train_steps = 4, seed = 7,
    optimizer = { type = 'adamw', args = { lr = 0.01 }, clip_gnorm = 0.5 },
    lr_scheduler = { type = 'cosine', args = { warmup_steps = 15, min_lr = 1e-3 } },
  }
  for key, value in pairs(changes or {}) do t[key] = value end -- luacheck: ignore
  return t
end

local function state_of(t)
  local state = {}
  for i, p in ipairs(t.engine.parameters) do state[i] = p.data:tolist() end
  for _, entry in ipairs(t.optimizer:state().tensors) do
    state[#state + 1] = { entry.parameter, entry.name, entry.data:tolist() }
  end
  return state
end

-- A logger that keeps what must repeat.
local function recorder(list)
  return {
    setup = function() end, finalize = function() end,
    log_metrics = function(_, metrics, step)
      list[#list + 1] = { step, metrics.epoch, metrics.train_loss, metrics.val_loss, metrics.lr,
        metrics.gnorm }
    end,
  }
end

describe('a run', function()
  local folder
  before_each(function() folder = runs.folder() end)
  after_each(function() runs.remove(folder) end)

  it('says what it does', function()
    local t = runs.trainer {
      model = { type = 'mlp', args = { sizes = { 8, 3 } } }, dataset = samples(100),
      optimizer = { type = 'adamw' }, max_train_steps = 10,
      checkpoint = { save_dir = folder .. '/ck' },
    }
    t:run()
    local text = table.concat(t.lines, '\n')
    assert.matches('Device: cpu, threads: 1, engine: eager\nParameters: 27\n', text)
    local lines = runs.lines_from(t, 'Training...')
    assert.matches('^Epoch 0: 010/100 train_loss=%d%.%d%d%d, lr=0.001, gnorm=%d%.%d%d%d, '
      .. 'train_wall=%S+$', lines[2])
    local loss = lines[2]:match 'train_loss=(%S+),'
    assert.same({
      'Training...', lines[2],
      ('Saving checkpoint after 10 steps with loss=%s.'):format(loss),
      ('Saving checkpoint to %s/ck/0000-0010'):format(folder),
      'Saving checkpoint as the last checkpoint.',
      ('Best loss updated: inf -> %s'):format(loss),
      'Saving checkpoint as the best checkpoint.',
      'Reached max train steps(10): Training is done.',
      ('Loss curve: %s/ck/loss.svg'):format(folder),
    }, lines)
    assert.equal('file', base.file_exists(folder .. '/ck/best/manifest.json'))
    assert.equal('file', base.file_exists(folder .. '/ck/loss.svg'))
  end)

  it('calls hooks in their order', function()
    local seen = {}
    local hook = {}
    for _, name in ipairs(require('nnscaler.hooks').names) do
      hook[name] = function() seen[#seen + 1] = name end
    end
    runs.trainer(job { max_train_steps = 1, hook = hook, val_every_n_train_steps = 1,
      max_val_steps = 1, dataset = function() return { train = samples(23), val = samples(1) } end,
      checkpoint = { save_dir = folder } }):run()
    assert.same({
      'after_setup', 'on_train_start', 'on_epoch_start', 'on_step_start', 'before_zero_grad',
      'after_zero_grad', 'on_train_step_start', 'on_train_step_end',
      'after_aggregate_train_step_outputs', 'before_sync_grad', 'after_sync_grad',
      'before_gnorm_clip', 'after_gnorm_clip', 'before_optimizer_step', 'after_optimizer_step',
      'before_log_train_metrics', 'on_step_end', 'on_val_start', 'on_val_step_start',
      'on_val_step_end', 'after_aggregate_val_step_outputs', 'on_val_end',
      'before_log_val_metrics', 'on_save_checkpoint', 'on_train_end', 'on_finalize',
    }, seen)
  end)

  it('goes through epochs, and evaluates and saves at their ends', function()
    local epochs, steps, ids = {}, {}, {}
    local t = runs.trainer(job { max_epochs = 2, max_train_steps = 100,
      val_every_n_train_steps = nil, checkpoint = { save_dir = folder },
      hook = {
        on_epoch_start = function(_, epoch) epochs[#epochs + 1] = 'start ' .. epoch end,
        on_epoch_end = function(_, epoch) epochs[#epochs + 1] = 'end ' .. epoch end,
        on_step_end = function(trainer, step) steps[step] = trainer.epoch end,
        on_train_step_start = function(trainer)
          for k = 0, 11 do ids[k] = trainer.train_loader:ids(k) end
        end,
      } })
    local result = t:run()
    assert.equal(12, result.step)
    assert.equal('Reached max epochs(2): Training is done.', result.reason)
    assert.same({ 'start 0', 'end 0', 'start 1', 'end 1' }, epochs)
    assert.same({ 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1 }, steps)
    local visits = {}
    for k = 0, 11 do
      for _, id in ipairs(ids[k]) do visits[id] = (visits[id] or 0) + 1 end
    end
    for id = 0, 22 do assert.equal(1, visits[id]) end
    assert.equal('folder', base.file_exists(folder .. '/0000-0006'))
    assert.equal('folder', base.file_exists(folder .. '/0001-0012'))
  end)

  it('ends early on request without changing the schedule', function()
    local lrs = {}
    local function keep(_, _, metrics) lrs[#lrs + 1] = metrics.lr end
    local t = runs.trainer(job { hook = { on_step_end = keep } })
    t:run()
    local whole = lrs
    lrs = {}
    t = runs.trainer(job { hook = { on_step_end = keep }, stop_after_steps = 3 })
    assert.equal('Stopped after 3 of 20 steps (stop_after_steps).', t:run().reason)
    assert.same({ whole[1], whole[2], whole[3] }, lrs)
    t = runs.trainer(job { hook = { on_step_end = function(trainer, step)
      if step == 5 then trainer:stop() end
    end } })
    local result = t:run()
    assert.equal(5, result.step)
    assert.equal('Stopped by trainer:stop() after 5 steps.', result.reason)
  end)

  it('divides gradients once, by what all micro-batches weigh together', function()
    -- One step of plain SGD on 4 micro-batches moves the weights as one on the whole batch does.
    local function weights(micro, steps)
      local t = runs.trainer(job {
        model = { type = 'mlp', args = { sizes = { 8, 3 } } }, precision = 'fp64',
        dataset = require('nnscaler.data.loader') { dataset = samples(8), batch = micro },
        micro_batch_size = micro, grad_accumulation_steps = steps, max_train_steps = 3,
        optimizer = { type = 'sgd', args = { lr = 0.5 } }, lr_scheduler = { type = 'constant' },
      })
      t:run()
      return t.engine.parameters[1].data:flatten():tolist()
    end
    local whole, parts = weights(8, 1), weights(2, 4)
    for i, value in ipairs(whole) do
      assert.is_true(math.abs(value - parts[i]) < 1e-14 * 10, value .. ' against ' .. parts[i])
    end
  end)

  it('clips to the norm it was told', function()
    local norms = {}
    local t = runs.trainer(job { precision = 'fp64', max_train_steps = 2, hook = {
      after_gnorm_clip = function(trainer, gnorm)
        local sum = 0
        for _, p in ipairs(trainer.engine.parameters) do
          sum = sum + trainer.engine:grad(p.name):square():sum():item()
        end
        norms[#norms + 1] = { gnorm, math.sqrt(sum) }
      end,
    } })
    t:run()
    for _, pair in ipairs(norms) do
      assert.is_true(pair[1] > 0.5)
      local clipped = pair[1] * 0.5 / (pair[1] + 1e-6)
      assert.is_true(math.abs(pair[2] - clipped) < 1e-12, clipped .. ' expected, got ' .. pair[2])
    end
  end)
end)

describe('a resumed run', function()
  local folder
  before_each(function() folder = runs.folder() end)
  after_each(function() runs.remove(folder) end)

  it('continues bit for bit', function()
    local whole, part = {}, {}
    local t = runs.trainer(job { log = { recorder(whole) } })
    t:run()
    local expected = state_of(t)
    local checkpoint = { save_dir = folder, every_n_train_steps = 10 }
    -- The first run goes on after its last checkpoint, as one that is killed does.
    local first = runs.trainer(job { log = { recorder(part) }, checkpoint = checkpoint, hook = {
      on_step_end = function(_, step) if step == 13 then error 'killed' end end } })
    assert.matches('killed', message(first.run, first))
    for i = #part, 1, -1 do
      if part[i][1] > 10 then table.remove(part, i) end
    end
    checkpoint = { save_dir = folder, resume_from = 'last' }
    local second = runs.trainer(job { log = { recorder(part) }, checkpoint = checkpoint })
    second:run()
    assert.same(expected, state_of(second))
    -- Saving evaluates: step 10 has a validation that the whole run has not.
    local saved, best = { [10] = true, [12] = true, [18] = true, [20] = true }, math.huge
    for i = #part, 1, -1 do
      local step, val_loss = part[i][1], part[i][4]
      if saved[step] and val_loss then best = math.min(best, val_loss) end
      if step == 10 and val_loss then table.remove(part, i) end
    end
    assert.same(whole, part)
    assert.equal(best, second.best_loss)
    assert.equal(20, second.step)
    assert.matches('Resumed from .*/0001%-0010 after 10 steps', table.concat(second.lines, '\n'))
    assert.same(t.history.train, second.history.train)
  end)

  it('starts from scratch when there is no last checkpoint, and says so', function()
    local t = runs.trainer(job { max_train_steps = 1,
      checkpoint = { save_dir = folder .. '/none', resume_from = 'best' } })
    t:run()
    assert.matches("warning: there is no checkpoint 'best' in '[^']*': training starts from scr",
      table.concat(t.lines, '\n'))
  end)

  it('refuses a path that is not there and data that were cut otherwise', function()
    local t = runs.trainer(job { checkpoint = { save_dir = folder, resume_from = folder .. '/x' } })
    assert.matches('there is no checkpoint', message(t.run, t))
    runs.trainer(job { max_train_steps = 2, checkpoint = { save_dir = folder } }):run()
    local resumed = { save_dir = folder, resume_from = 'last' }
    t = runs.trainer(job { dataset = function() return { train = samples(31) } end,
      checkpoint = resumed })
    assert.matches('written with 24 samples in an epoch, this job has 32', message(t.run, t))
    t = runs.trainer(job { micro_batch_size = 3, checkpoint = resumed })
    local said = message(t.run, t)
    assert.matches('written 8 samples into an epoch, in the middle of a micro%-batch of '
      .. 'micro_batch_size = 3', said)
  end)

  it('goes on from checkpoints that kept the place in the data as a step', function()
    local whole, part = {}, {}
    runs.trainer(job { log = { recorder(whole) } }):run()
    runs.trainer(job { stop_after_steps = 9, log = { recorder(part) },
      checkpoint = { save_dir = folder } }):run()
    local function resumed(per_step)
      return runs.trainer(job { log = { recorder(part) },
        checkpoint = { save_dir = folder, resume_from = 'last' }, hook = {
          on_load_checkpoint = function(_, saved)
            saved.state.position = nil
            saved.state.micro_batches_per_step, saved.state.micro_batches_per_epoch = per_step, 12
          end,
        } })
    end
    local other = resumed(3)
    assert.matches('was written with micro_batches_per_step = 3, this job has 2',
      message(other.run, other))
    resumed(2):run()
    -- The end of the first run was evaluated too.
    for i = #part, 1, -1 do
      if part[i][1] == 9 and part[i][4] then table.remove(part, i) end
    end
    assert.same(whole, part)
  end)

  it('goes on with other batches where it was, every sample once and in the same order', function()
    local ids
    local function collect(trainer)
      local first, count = trainer.span:micro_batches(trainer)
      for k = first, first + count - 1 do
        for _, id in ipairs(trainer.train_loader:ids(k)) do ids[#ids + 1] = id end
      end
    end
    local function train(micro, steps, changes)
      ids = {}
      changes.micro_batch_size, changes.grad_accumulation_steps = micro, steps
      changes.hook, changes.val_every_n_train_steps = { on_train_step_start = collect }, 1000
      changes.max_epochs, changes.max_train_steps = 3, 1000
      changes.dataset = function() return { train = samples(24) } end
      changes.lr_scheduler = { type = 'linear' }
      local t = runs.trainer(job(changes))
      t:run()
      return t, ids
    end
    local _, whole = train(2, 2, {})
    local saving = { save_dir = folder, resume_from = 'last' }
    local _, first = train(2, 2, { stop_after_steps = 2, checkpoint = { save_dir = folder } })
    local t, second = train(4, 1, { stop_after_steps = 7, checkpoint = saving })
    assert.equal(18, t.horizon)
    local last, third = train(1, 6, { checkpoint = saving })
    for _, more in ipairs { second, third } do
      for _, id in ipairs(more) do first[#first + 1] = id end
    end
    assert.same(whole, first)
    -- Steps are larger from step 7 on: 20 + 24 samples in steps of 6, within the old horizon.
    assert.equal(15, last.step)
    assert.equal(18, last.horizon)
    assert.matches('The run ends after 15 steps; the learning rate keeps its horizon of 18.',
      table.concat(last.lines, '\n'))
  end)

  it('warns of another seed', function()
    runs.trainer(job { max_train_steps = 2, checkpoint = { save_dir = folder } }):run()
    local t = runs.trainer(job { seed = 8, max_train_steps = 3,
      checkpoint = { save_dir = folder, resume_from = folder .. '/0000-0002' } })
    assert.equal(3, t:run().step)
    assert.matches('warning: .* was written with seed=7, this job has seed=8',
      table.concat(t.lines, '\n'))
  end)

  it('changes nothing when a tensor does not fit', function()
    runs.trainer(job { max_train_steps = 2, checkpoint = { save_dir = folder } }):run()
    local t = runs.trainer(job { model = { type = 'mlp', args = { sizes = { 8, 15, 3 } } },
      checkpoint = { save_dir = folder, resume_from = 'last' } })
    local said = message(t.run, t)
    assert.matches('nothing was changed', said)
    assert.matches('wrong shape: layers.0.weight is float32%[16, 8%], the model has '
      .. 'float32%[15, 8%]', said)
  end)

  it('has nothing to do when the run was done', function()
    runs.trainer(job { max_train_steps = 2, checkpoint = { save_dir = folder } }):run()
    local t = runs.trainer(job { max_train_steps = 2,
      checkpoint = { save_dir = folder, resume_from = 'last' } })
    assert.equal(2, t:run().step)
    assert.matches('Reached max train steps%(2%)', table.concat(t.lines, '\n'))
  end)
end)

-- A model whose loss is what the data say: a number, or not.
local Echo = nn.class 'Echo'
function Echo:init() self.w = nn.Parameter { shape = {}, init = nn.init.ones() } end
function Echo:forward(sample)
  return (self.w * sample.value).mean(self.w * sample.value), { tokens = sample.n:sum() }
end

local function echo_data(values)
  return {
    len = function() return #values end,
    get = function(_, i)
      return { value = T.tensor(values[i + 1]), n = T.tensor(values[i + 1] == -1 and 0 or 1) }
    end,
    ids = nil,
  }
end

describe('losses that are not numbers', function()
  local folder
  before_each(function() folder = runs.folder() end)
  after_each(function() runs.remove(folder) end)

  local function run(values, changes)
    local t = {
      model = function() return Echo() end,
      dataset = require('nnscaler.data.loader') { dataset = echo_data(values), batch = 1 },
      max_epochs = 1, optimizer = { type = 'sgd', args = { lr = 0.5 } },
    }
    for key, value in pairs(changes or {}) do t[key] = value end -- luacheck: ignore
    return runs.trainer(t)
  end

  it('end the run with the step and the last good checkpoint', function()
    local t = run({ 1, 2, 0 / 0, 4 },
      { checkpoint = { save_dir = folder, every_n_train_steps = 2 } })
    local said = message(t.run, t)
    assert.matches('train_loss is nan at step 3 %(epoch 0%); expected a finite number', said)
    assert.matches('last good checkpoint: .*/0000%-0002', said)
    assert.is_nil(base.file_exists(folder .. '/0000-0003'))
    t = run { 1 / 0 }
    said = message(t.run, t)
    assert.matches('train_loss is inf at step 1', said)
    assert.matches('last good checkpoint: none', said)
  end)

  it('are skipped on request', function()
    local t = run({ 1, 0 / 0, 4 }, { on_nan = 'skip' })
    t:run()
    assert.equal(1 - 0.5 * 1 - 0.5 * 4, t.engine.parameters[1].data:item())
    assert.matches('warning: train_loss is nan at step 2: no update', table.concat(t.lines, '\n'))
  end)

  it('of no label at all change nothing', function()
    local t = run { 1, -1, 4 }
    t:run()
    assert.equal(1 - 0.5 * 1 - 0.5 * 4, t.engine.parameters[1].data:item())
    assert.matches('warning: step 2 has no label that counts', table.concat(t.lines, '\n'))
  end)
end)
