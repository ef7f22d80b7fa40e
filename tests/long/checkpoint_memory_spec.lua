-- Memory and time of a checkpoint of 1.1 GB of a run whose step takes half a second: peaks of
-- saving and loading above what the run has, by the process's high-water mark, how long training
-- waits, and how long the ten steps after it take.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()

-- Runs the job; returns its measurements.
local function run(more, before)
  local said, code = shell.nnscaler(('run tests/long/jobs/large_state.lua out=%s/told '
    .. 'checkpoint.save_dir=%s/saved gen_savedir=%s/gen threads=1 %s')
    :format(folder, folder, folder, more), before)
  assert.equal(0, code, said)
  return base.json_decode(base.file_read(folder .. '/told'))
end

local function tell(what, told)
  print(('  %s: %.0f MB of states, peak %+.0f MB (%.3f), %.3f s'):format(what, told.state / 1e6,
    told.peak / 1e6, told.peak / told.state, told.seconds))
end

describe('a checkpoint of more than 1 GB', function()
  teardown(remove)
  local saved

  it('is saved with a tenth of its size more', function()
    saved = run ''
    tell('saved', saved)
    assert.is_true(saved.state >= 1e9)
    assert.is_true(saved.peak <= 0.1 * saved.state)
  end)

  -- Which save, on which processors, and how much longer the ten steps after it may take.
  for _, case in ipairs {
    { 1, '', 1.03 }, { 2, '', 1.03 }, { 1, 'taskset -c 0', 1.10 }, { 2, 'taskset -c 0', 1.10 },
  } do
    local save, before, limit = unpack(case)
    it(('is saved beside training with a copy and a tenth more: save %d %s'):format(save, before),
      function()
        local async = run('checkpoint.async=true save=' .. save, before)
        -- The memory of copies was taken before: what the run has is what it has without.
        async.peak = async.base + async.peak - saved.base
        tell('saved beside training', async)
        assert.is_true(async.peak <= 1.1 * async.state)
        print(('  training waited %.1f %% of a save before it; steps beside it took %.3f of others')
          :format(100 * async.seconds / saved.seconds, async.beside / async.others))
        assert.is_true(async.seconds <= 0.05 * saved.seconds)
        assert.is_true(async.beside <= limit * async.others)
      end)
  end

  it('is loaded with a fifth of its size and a tensor more', function()
    local told = run 'checkpoint.resume_from=last'
    tell('loaded', told)
    assert.is_true(told.peak <= 1.2 * told.state + told.tensor)
  end)
end)
