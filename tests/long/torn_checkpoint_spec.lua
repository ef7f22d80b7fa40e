-- Two ranks save after every step, in turn before the next one and beside it, and all their
-- processes are killed at once, at many moments: the newest checkpoint is whole, and as a rule
-- newer than the one before (a machine with other work may come to no save in a round). Rounds:
-- NNSCALER_TEST_KILLS, 1000 unless set.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local runs = training.new 'tests/cli/jobs/resume.lua'

-- Starts the run, waits until it trains, and a little more; then kills all of it.
local script = [[
setsid '%s' %s $2 > %s/log 2>&1 &
for i in $(seq 600); do sleep 0.1; grep -q 'Training\.\.\.' %s/log && break; done
sleep 0.$1
kill -9 $(pgrep -f 'save_dir=%s ') 2>/dev/null
while pgrep -f 'save_dir=%s ' >/dev/null; do sleep 0.05; done
]]

describe('checkpoints that ranks write together', function()
  teardown(runs.remove)

  it('are whole whenever the ranks are killed', function()
    local dir, newest, newer = runs.folder .. '/torn', 0, 0
    local rounds = tonumber(os.getenv 'NNSCALER_TEST_KILLS' or 1000)
    base.file_write(runs.folder .. '/round.sh', script:format(shell.binary, runs.arguments('torn',
      'checkpoint.every_n_train_steps=1 max_train_steps=1000000 max_epochs=1000000 '
      .. 'checkpoint.keep_last_n_checkpoints=1 checkpoint.resume_from=last -n 2'), runs.folder,
      runs.folder, dir, dir))
    for round = 1, rounds do
      shell.run(('sh %s/round.sh %03d checkpoint.async=%s'):format(runs.folder,
        100 + round * 137 % 700, tostring(round % 2 == 0)))
      local saved = checkpoint.open(checkpoint.resolve('last', dir))
      saved:check()
      assert.equal(saved.step, saved.state.step)
      assert.is_true(saved.step >= newest)
      if saved.step > newest then newer = newer + 1 end
      newest = saved.step
    end
    assert.is_true(newer >= rounds / 2, ('%d of %d rounds saved'):format(newer, rounds))
  end)
end)
