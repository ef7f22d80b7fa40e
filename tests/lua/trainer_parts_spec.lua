-- The parts of the trainer that need no tensors.
local batches = require 'nnscaler.trainer.batches'
local format = require 'nnscaler.format'
local history = require 'nnscaler.trainer.history'
local hooks = require 'nnscaler.hooks'
local loggers = require 'nnscaler.loggers'
local plot = require 'nnscaler.plot'
local message = require 'tests.lua.support.message'

describe('batch sizes', function()
  it('derives the accumulation', function()
    assert.equal(1, batches.accumulation({ micro_batch_size = 4 }, 1))
    assert.equal(3, batches.accumulation({ micro_batch_size = 4, grad_accumulation_steps = 3 }, 1))
    assert.equal(6, batches.accumulation({ micro_batch_size = 2, global_batch_size = 12 }, 1))
    assert.equal(3, batches.accumulation({ micro_batch_size = 2, global_batch_size = 12 }, 2))
  end)

  it('names the numbers of a contradiction', function()
    local said = message(batches.accumulation,
      { micro_batch_size = 4, global_batch_size = 10, grad_accumulation_steps = 3 }, 1)
    assert.matches('global_batch_size 10 is not micro_batch_size 4', said, 1, true)
    assert.matches('grad_accumulation_steps 3 = 12', said, 1, true)
    assert.matches('global_batch_size 10 is not a multiple of micro_batch_size 4',
      message(batches.accumulation, { micro_batch_size = 4, global_batch_size = 10 }, 1), 1, true)
  end)
end)

-- Calls `f` with the micro-batches of each step; returns how many steps there were.
local function visit(span, f)
  local at = batches.start()
  while at.step < span.total_steps do
    f(span:micro_batches(at))
    span:advance(at)
    if span:epoch_ended(at) then span:next_epoch(at) end
  end
  return at.step
end

describe('the span of a run', function()
  it('ends at the smaller of epochs and steps', function()
    local span = batches.span({ max_epochs = 3 }, 10, 4)
    assert.equal(3, span.steps_per_epoch)
    assert.equal(9, span.total_steps)
    assert.is_true(span.epochs_end)
    span = batches.span({ max_epochs = 3, max_train_steps = 5 }, 10, 4)
    assert.equal(5, span.total_steps)
    assert.is_false(span.epochs_end)
    span = batches.span({ max_epochs = 1, max_train_steps = 50 }, 10, 4)
    assert.equal(3, span.total_steps)
    assert.equal(7, batches.span({ max_train_steps = 7 }, nil, 2).total_steps)
  end)

  it('visits every micro-batch of an epoch once, the last step takes what is left', function()
    local span, seen = batches.span({ max_epochs = 2 }, 10, 4), {}
    visit(span, function(first, count)
      for k = 0, count - 1 do seen[#seen + 1] = first + k end
    end)
    local expected = {}
    for i = 0, 19 do expected[i + 1] = i end
    assert.same(expected, seen)
  end)

  it('has steps of other sizes from some step on', function()
    local job = { max_epochs = 3, micro_batch_size = 2, global_batch_schedule = {
      { after_steps = 2, global_batch_size = 8 }, { after_steps = 5, global_batch_size = 12 } } }
    local span = batches.span(job, 10, 2, batches.schedule(job, 2))
    local sizes = {}
    assert.equal(span.total_steps, visit(span, function(_, count) sizes[#sizes + 1] = count end))
    assert.same({ 2, 2, 4, 2, 4, 6, 6, 4 }, sizes)
    assert.equal(4, span.steps_per_epoch)
    -- From any position on, the end is found as if the run had gone there.
    local at, ends = batches.start(), span.total_steps
    for _ = 1, 5 do
      span:advance(at)
      if span:epoch_ended(at) then span:next_epoch(at) end
      span:find_end(at)
      assert.equal(ends, span.total_steps)
    end
  end)

  it('refuses a schedule of sizes that cannot be', function()
    local function said(schedule)
      return message(batches.schedule, { micro_batch_size = 2,
        global_batch_schedule = schedule }, 2)
    end
    assert.matches('%[1%].global_batch_size 6 is not a multiple of micro_batch_size 2 × scale '
      .. 'units 2 = 4', said { { after_steps = 0, global_batch_size = 6 } })
    assert.matches('%[2%].after_steps is 3; expected an integer above 3', said {
      { after_steps = 3, global_batch_size = 8 }, { after_steps = 3, global_batch_size = 4 } })
    assert.matches("%[1%] has the key 'step'; expected after_steps and global_batch_size",
      said { { step = 3, global_batch_size = 8 } })
    assert.matches('%[1%].global_batch_size is nil; expected an integer of at least 1',
      said { { after_steps = 3 } })
  end)

  it('refuses what has no end', function()
    assert.matches('neither max_train_steps nor max_epochs is set', message(batches.span, {}, 5, 1))
    assert.matches('max_epochs is 2, but the training data have no epochs',
      message(batches.span, { max_epochs = 2 }, nil, 1))
    assert.matches('the training data have no micro%-batch in an epoch',
      message(batches.span, { max_epochs = 2 }, 0, 1))
  end)
end)

describe('numbers for people', function()
  it('are short', function()
    assert.equal('2.261', format.short(2.2612))
    assert.equal('0.001', format.short(0.001))
    assert.equal('1.000e-04', format.short(1e-4))
    assert.equal('0.000', format.short(0))
    assert.equal('inf', format.short(math.huge))
    assert.equal('nan', format.short(0 / 0))
    assert.equal('10,745,088', format.grouped(10745088))
    assert.equal('999', format.grouped(999))
    assert.equal('1:02:05', format.duration(3725))
  end)

  it('keep 17 digits in files', function()
    assert.equal('0.10000000000000001', format.json_number(0.1))
    assert.equal('null', format.json_number(0 / 0))
  end)
end)

describe('hooks', function()
  it('run in the order given', function()
    local seen = {}
    local h = hooks.new {
      { on_step_end = function(_, step) seen[#seen + 1] = 'a' .. step end },
      { on_step_end = function(_, step) seen[#seen + 1] = 'b' .. step end },
    }
    h:fire('on_step_end', {}, 3)
    h:fire('on_step_start', {}, 3)
    assert.same({ 'a3', 'b3' }, seen)
  end)

  it('are 29, and a name outside of them is refused with the list', function()
    assert.equal(29, #hooks.names)
    local said = message(hooks.new, { on_step_ends = function() end })
    assert.matches("unknown hook 'on_step_ends'; expected one of after_setup, ", said)
    assert.matches('on_step_end, on_val_start', said)
    assert.matches('%[hook.on_step_end%] a number; expected a function',
      message(hooks.new, { on_step_end = 3 }))
  end)
end)

describe('the history', function()
  it('stays small and keeps the mean', function()
    local h = history.new()
    for step = 1, 5000 do h:add_train(step, step % 2) end
    assert.is_true(#h.train.step <= 1000)
    assert.equal(8, h.stride)
    for i, loss in ipairs(h.train.loss) do assert.equal(0.5, loss, i) end
  end)

  it('goes on from its state', function()
    local whole, first = history.new(), history.new()
    for step = 1, 1500 do whole:add_train(step, step) end
    for step = 1, 1201 do first:add_train(step, step) end
    local second = history.new(first:state())
    for step = 1202, 1500 do second:add_train(step, step) end
    assert.same(whole:state(), second:state())
  end)
end)

describe('loggers', function()
  local path = os.tmpname()

  it('write one object a step, and drop what a resumed run repeats', function()
    local function run(done, from, to)
      local list = loggers.new { { type = 'jsonl', args = { path = path } } }
      list[1]:setup { step = done }
      for step = from, to do
        list[1]:log_metrics({ train_loss = 1 / step, epoch = 0 }, step, { tag = 'train' })
        if step % 2 == 0 then list[1]:log_metrics({ val_loss = 0.1 }, step, { tag = 'val' }) end
        list[1]:end_step()
      end
      list[1]:finalize()
    end
    run(0, 1, 4)
    local file = assert(io.open(path, 'a'))
    file:write '{"step": 5, "epo' -- a line that a kill cut
    file:close()
    run(2, 3, 4)
    file = assert(io.open(path))
    local text = file:read '*a'
    file:close()
    assert.equal('{"step": 1, "epoch": 0, "train_loss": 1}\n'
      .. '{"step": 2, "epoch": 0, "train_loss": 0.5, "val_loss": 0.10000000000000001}\n'
      .. '{"step": 3, "epoch": 0, "train_loss": 0.33333333333333331}\n'
      .. '{"step": 4, "epoch": 0, "train_loss": 0.25, "val_loss": 0.10000000000000001}\n', text)
    os.remove(path)
  end)

  it('write a table', function()
    local list = loggers.new { { type = 'csv', args = { path = path } } }
    list[1]:setup { step = 0 }
    list[1]:log_metrics({ train_loss = 0.5, epoch = 0, lr = 1 }, 1, { tag = 'train' })
    list[1]:finalize()
    local file = assert(io.open(path))
    assert.equal('step,epoch,train_loss,gnorm,lr,tokens,train_wall,val_loss\n1,0,0.5,,1,,,\n',
      file:read '*a')
    file:close()
    os.remove(path)
  end)

  it('need three methods', function()
    assert.matches("the logger has no method 'log_metrics'",
      message(loggers.new, { { setup = function() end } }))
    assert.matches("nothing is named 'tensorbord'",
      message(loggers.new, { { type = 'tensorbord' } }))
  end)
end)

describe('the loss curve', function()
  it('has round ticks inside of the range', function()
    assert.same({ 0, 500, 1000, 1500, 2000 }, (plot.ticks(0, 2000)))
    assert.same({ 2, 4, 6, 8, 10, 12 }, (plot.ticks(1.5, 13)))
  end)

  it('shows several runs over each other, each by its name', function()
    local function run(name, ...)
      local step = {}
      for i = 1, select('#', ...) do step[i] = i end
      return { name = name, step = step, loss = { ... } }
    end
    local svg = plot.overlay('a & b', { run('one', 3, 2, 1), run('two', 3, 2, 1),
      run('<3>', 4, 4) })
    local _, lines = svg:gsub('<polyline', '')
    assert.equal(3, lines)
    local first, second = svg:match 'points="([^"]+)".-points="([^"]+)"'
    assert.equal(first, second) -- equal runs lie on each other
    assert.matches('>a &amp; b<', svg)
    assert.matches('>two<', svg)
    assert.matches('>&lt;3&gt;<', svg)
  end)

  it('is well-formed with any number of points', function()
    for _, n in ipairs { 0, 1, 2, 300 } do
      local train = { step = {}, loss = {} }
      for i = 1, n do train.step[i], train.loss[i] = i, 3 / i end
      local svg = plot.losses { title = 'a < b', train = train,
        val = { step = { 1 }, loss = { 2 } } }
      assert.matches('^<svg ', svg)
      assert.matches('</svg>\n$', svg)
      assert.matches('a &lt; b', svg)
      assert.is_nil(svg:find 'nan')
      assert.is_nil(svg:find 'inf')
      local _, points = svg:gsub('<circle', '')
      assert.equal(n == 1 and 2 or 1, points)
    end
  end)
end)
