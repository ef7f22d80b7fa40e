-- Two ranks train while one of them is killed now and then, at no chosen moment, also while it
-- saves: the run starts again by itself and ends with the curve of one that nobody disturbed, bit
-- for bit.
-- Minutes: NNSCALER_TEST_SOAK, 30 unless set.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local minutes = tonumber(os.getenv 'NNSCALER_TEST_SOAK' or 30)
local runs = training.new 'tests/cli/jobs/resume.lua'

-- Kills a rank of a run every few seconds, as long as the time and the run last.
local killer = [[
end=$(( $(date +%%s) + %d )); i=0
while [ $(date +%%s) -lt $end ] && kill -0 $run 2>/dev/null; do
  i=$((i + 1)); sleep $((2 + (i * 7919 + 13) %% 4)).$(( (i * 104729) %% 10 ))
  ranks=$(pgrep -f 'save_dir=%s ' | while read p; do
    tr '\0' ' ' < /proc/$p/cmdline 2>/dev/null | grep -qv -e mpirun -e max-restarts && echo $p
  done)
  set -- $ranks; [ $# -gt 0 ] || continue
  shift $(( i %% $# )); kill -9 $1 2>/dev/null && echo killed
done
]]

describe('a soak', function()
  teardown(runs.remove)

  it(('of %g minutes ends with the curve of an undisturbed run'):format(minutes), function()
    local function more(steps)
      return ('max_train_steps=%d max_epochs=%d checkpoint.every_n_train_steps=20 '
        .. 'checkpoint.keep_last_n_checkpoints=3 -n 2'):format(steps, steps)
    end
    local function whole(name, steps)
      local began = base.clock()
      local out, code = shell.nnscaler(runs.arguments(name, more(steps)))
      assert.equal(0, code, out)
      return base.clock() - began
    end
    -- The steps that two ranks need for that time on this machine, if they are let.
    local steps = math.floor(minutes * 60 * 2000 / whole('pace', 2000))
    whole('whole', steps)
    local command = runs.arguments('soak', more(steps) .. ' --max-restarts 10000')
    base.file_write(runs.folder .. '/killer.sh', ("'%s' %s > %s/log 2>&1 & run=$!\n%s\nwait $run\n")
      :format(shell.binary, command, runs.folder, killer:format(minutes * 60, runs.folder
        .. '/soak')))
    local said, code = shell.run(('sh %s/killer.sh'):format(runs.folder))
    assert.equal(0, code, said)
    local _, kills = said:gsub('killed', '')
    assert.is_true(kills >= minutes * 2, said)
    local function curve(name)
      local rows = {}
      for _, row in ipairs(runs.rows(name)) do
        rows[row.step] = { row.train_loss, row.lr, row.gnorm }
      end
      return rows
    end
    local want, got = curve 'whole', curve 'soak'
    assert.equal(steps, #want)
    assert.same(want, got)
    local function last(name)
      return checkpoint.open(checkpoint.resolve('last', runs.folder .. '/' .. name))
    end
    local a, b = last 'whole', last 'soak'
    for _, name in ipairs(a:names()) do assert.is_true(a:read(name):equal(b:read(name)), name) end
    print(('%d kills'):format(kills))
  end)
end)
