--- Memory of a run: what it will take is said before its first step, what cannot fit is refused
--- with a change that helps, and where a tensor finds no room the error says what was alive.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local gpt = 'recipes/nanogpt.lua preset=tiny layers=2 width=32 heads=2 block=16 dropout=0 '
  .. 'micro_batch_size=4 global_batch_size=8 max_train_steps=1 max_val_steps=1 '
  .. 'checkpoint.no_save=true comm.backend=local '

local function run(changes) return shell.nnscaler('run ' .. gpt .. changes) end

local kUnits = { B = 1, KB = 2 ^ 10, MB = 2 ^ 20, GB = 2 ^ 30 }

local function bytes(number, unit) return tonumber(number) * kUnits[unit] end

describe('memory of a run', function()
  it('is said before the first step, by kind, beside what there is', function()
    local said, code = run ''
    assert.equal(0, code, said)
    local total, unit = said:match('Memory: at most (%S+) (%S+) %(in backward: weights %S+ KB, '
      .. 'gradients %S+ KB, optimizer %S+ KB, activations of 1 micro%-batch%(es%) %S+ KB, samples '
      .. '%S+ KB%), of %S+ GB of the machine')
    assert.is_truthy(total, said)
    local report = shell.nnscaler('compile ' .. gpt .. ' --report')
    assert.equal(bytes(total, unit), bytes(report:match 'Most memory: rank 0 with (%S+) (%S+)'))
  end)

  it('is that of the rank that takes most', function()
    local said, code = run '-n 2 pas_policy=pp compute_config.plan_ngpus=2'
    assert.equal(0, code, said)
    assert.matches('Memory of rank 0, which takes most: at most %S+ KB %(in %w+: weights', said)
  end)

  -- Runs a job that does not fit, then with the change that the hint names.
  local function refused(changes, gb, expected)
    local limit = (' pas_policy=dp compute_config.memory_gb=%.7f'):format(gb)
    local said, code = run(changes .. limit)
    assert.equal(2, code, said)
    assert.matches('%[trainer%.memory%] rank %d will take %S+ KB %(in %w+: weights [^\n]*; '
      .. 'expected at most %S+ KB, compute_config%.memory_gb', said)
    local hint = said:match 'hint: (.-) takes %S+ KB'
    assert.is_truthy(hint, said)
    assert.matches(expected, hint)
    said, code = run(changes .. limit .. ' ' .. hint)
    assert.equal(0, code, said)
  end

  it('is refused beyond the limit, with the smallest change that helps', function()
    refused('-n 2', 0.00065, '^compute_config%.use_zero=1$')
    refused('', 0.00065, "^pas_config%.recompute_modules='transformer%.h%.%*'$")
    local blocks = " pas_config.recompute_modules='transformer.h.*'"
    refused(blocks, 0.0005, '^micro_batch_size=1 global_batch_size=8$')
    refused('', 0.0005, "^pas_config%.recompute_modules='.*' micro_batch_size=1 "
      .. 'global_batch_size=8$')
  end)

  it('is refused on one rank', function()
    local said, code = run 'pas_policy=dp compute_config.memory_gb=0.0001'
    assert.equal(2, code, said)
    assert.matches('hint: neither shards, nor recomputation, nor smaller micro%-batches are enough',
      said)
  end)

  it('that ends in a step is told of: predicted, alive by tensor, and where', function()
    -- Later samples are longer than the one that the prediction is of.
    local path = folder .. '/longer.lua'
    base.file_write(path, [[
local nnscaler, nn, T = require 'nnscaler', require 'nnscaler.nn', require 'nnscaler.tensor'
local Model, reads = nn.class 'Model', 0
function Model:init() self.fc, self.out = nn.Linear(8, 512), nn.Linear(512, 1) end
function Model:forward(s) return self.out(self.fc(s.x):tanh()):square():mean() end
return {
  model = function() return Model() end,
  dataset = { len = function() return 64 end, get = function()
    reads = reads + 1
    return { x = T.ones { reads < 4 and 16 or 4096, 8 } }
  end },
  micro_batch_size = 1, max_train_steps = 8, optimizer = { type = 'sgd', args = { lr = 0.1 } },
  compute_config = { memory_gb = 0.01 }, checkpoint = { no_save = true },
  enable_progress_bar = false,
}
]])
    local said, code = shell.nnscaler(('run %s gen_savedir=%s'):format(path, folder))
    assert.equal(1, code, said)
    assert.matches('error: %[memory%.full%] aten::tanh: no room for a tensor of 8%.0 MB: %S+ MB of '
      .. '10%.2 MB are in use', said)
    assert.matches('\n  predicted for rank 0: at most %S+ KB %(in %w+: weights 20%.0 KB, ', said)
    assert.matches('\n  alive: %S+ MB %(weights 20%.0 KB, this micro%-batch %S+ MB', said)
    assert.matches('\n  largest of this micro%-batch:\n    fc +8%.0 MB\n    x +128%.0 KB\n', said)
    assert.matches('\n  step %d, at %S+gencode0%.%x+%.lua:%d+: s%.tanh = aten%.tanh%(fc%)  %-%- '
      .. 'longer%.lua:4\n', said)
  end)
end)
