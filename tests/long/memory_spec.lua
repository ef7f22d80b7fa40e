-- Ten thousand steps of the tiny GPT leave nothing behind.
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local process = require 'nnscaler._C.process'
local runs = require 'tests.lua.support.runs'
local shell = require 'tests.cli.support.shell'
local nnscaler = require 'nnscaler'

-- What is alive at the end of a step.
local function measure()
  collectgarbage()
  collectgarbage()
  local with_traces = collectgarbage 'count'
  jit.flush() -- machine code of hot Lua loops: a cache that LuaJIT bounds, filled as it sees fit
  collectgarbage()
  collectgarbage()
  local tensors, bytes = door.live()
  return {
    tensors = tensors, bytes = bytes, memory = door.memory(), references = process.references(),
    heap = collectgarbage 'count' * 1024, traces = with_traces - collectgarbage 'count',
    resident = process.rss_bytes(),
  }
end

local function run(changes)
  local folder, seen = runs.folder(), {}
  local text = nnscaler.data.characters(nnscaler.data.shakespeare, { block = 32 })
  local job = {
    model = { type = 'gpt',
      args = { vocab = text.vocab, layers = 4, heads = 4, width = 64, block = 32 } },
    dataset = text, micro_batch_size = 4, max_train_steps = 10000, eager = false,
    gen_savedir = folder .. '/gen',
    optimizer = { type = 'adamw', args = { lr = 1e-3 }, clip_gnorm = 1.0 },
    lr_scheduler = { type = 'cosine', args = { warmup_steps = 100, min_lr = 1e-4 } },
    -- Evaluations and checkpoints before the first look, so that all programs are there.
    val_every_n_train_steps = 50, max_val_steps = 2,
    checkpoint = { save_dir = folder, every_n_train_steps = 50, keep_last_n_checkpoints = 2 },
    hook = {
      on_step_end = function(_, step)
        local looks = { [100] = true, [1000] = true, [10000] = true }
        if looks[step] then seen[step] = measure() end
      end,
    },
  }
  for _, change in ipairs(changes) do job[change[1]] = change[2] end
  local trainer = runs.trainer(job)
  for _, level in ipairs { 'debug', 'info', 'warning' } do -- kept lines would count
    trainer.log[level] = function() end
  end
  trainer:run()
  runs.remove(folder)
  return seen
end

local function check(seen)
  local first, last = seen[100], seen[10000]
  for _, key in ipairs { 'tensors', 'bytes', 'memory', 'references' } do
    assert.equal(first[key], seen[1000][key], key .. ' at step 1,000')
    assert.equal(first[key], last[key], key .. ' at step 10,000')
  end
  local heap, resident = last.heap - first.heap, last.resident / first.resident - 1
  print(('  %d tensors of %d bytes, %d references; Lua heap %+.1f KB, resident size %+.2f %%; '
    .. 'compiled traces %.0f KB, then %.0f KB'):format(last.tensors, last.bytes, last.references,
    heap / 1024, 100 * resident, first.traces, last.traces))
  assert.is_true(heap <= 64 * 1024, ('the Lua heap grew by %d bytes'):format(heap))
  assert.is_true(resident <= 0.01, ('resident size grew by %.2f %%'):format(100 * resident))
end

describe('memory', function()
  it('stays as it is over 10,000 steps of a program', function() check(run {}) end)

  it('stays as it is over 10,000 steps with dropout and accumulation', function()
    check(run {
      { 'grad_accumulation_steps', 2 }, { 'micro_batch_size', 2 },
      { 'model', { type = 'gpt', args = { vocab = 75, layers = 1, heads = 2, width = 32,
        block = 32, dropout = 0.1 } } },
    })
  end)

  it('stays as it is over 10,000 steps of eager training', function()
    check(run { { 'eager', true } })
  end)

  for _, policy in ipairs { 'dp', 'fsdp', 'tp', 'pp' } do
    it('stays as it is over 8,000 steps of two ranks under ' .. policy, function()
      local folder, remove = shell.folder()
      local said, code = shell.nnscaler(('run recipes/nanogpt.lua -n 2 preset=tiny threads=1 '
        .. 'micro_batch_size=2 global_batch_size=4 pas_policy=%s max_train_steps=8000 '
        .. 'max_val_steps=1 val_every_n_train_steps=50 checkpoint.no_save=true '
        .. 'gen_savedir=%s/gen --metrics %s/metrics'):format(policy, folder, folder))
      assert.equal(0, code, said)
      local resident = {}
      for line in io.lines(folder .. '/metrics') do
        local row = base.json_decode(line)
        if row.step_s then resident[row.step] = row.rss_bytes end
      end
      remove()
      -- Memory comes in pages of 2 MB, and what a rank that lags is sent takes some: three pages
      -- are 800 bytes a step.
      local growth = resident[8000] - resident[100]
      print(('  %s on two ranks: resident size %+.2f %%'):format(policy,
        100 * growth / resident[100]))
      assert.is_true(growth <= 3 * 2 ^ 21)
    end)
  end
end)
