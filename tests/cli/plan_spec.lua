--- `nnscaler plan`: the plan, the time line of its schedule, and the plan as a file that runs.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
local job = 'recipes/nanogpt.lua preset=tiny layers=2 width=32 block=16 threads=1'

local function plan(more)
  local out, code = shell.nnscaler(('plan %s %s'):format(job, more))
  return out, code
end

describe('plan', function()
  teardown(remove)

  it('draws the schedule with idle time and makespan', function()
    local out, code = plan 'pas_policy=pp --world 2 grad_accumulation_steps=4'
    assert.equal(0, code, out)
    assert.matches("plan 'pp' .* 2 devices, 2 ranks %(1 units%), 2 stages, schedule 1f1b", out)
    assert.matches('rank 0 | F0 F1 %.  %.  B0=== F2', out)
    assert.matches('rank 1 | %.  F0 B0=== F1', out)
    -- (p - 1)(tF + tB + tW) of m(tF + tB + tW) + (p - 1)(…)
    assert.matches('| idle 3 of 15, 3 between', out)
    assert.matches('makespan 15 up to the barrier of clipping; idle 20.0 %%', out)
    assert.matches('programs of all ranks: checked', out)
  end)

  it('checks the programs of more ranks by classes', function()
    local out, code = plan 'pas_policy=pp --world 128 compute_config.plan_ngpus=2'
    assert.equal(0, code, out)
    assert.matches('programs of 128 ranks in 2 classes: that of each class checked', out)
  end)

  it('names the stage where a rank has several', function()
    local out, code = plan('pas_policy=pp --world 2 grad_accumulation_steps=4 '
      .. 'pas_config.pipeline_scheduler=zbv')
    assert.equal(0, code, out)
    assert.matches('4 stages on 2 pipeline ranks, 4 micro%-batches; F = 1, B = 1', out)
    assert.matches('rank 0 | F0:0', out)
    assert.matches('rank 0 .-, 0 between.-rank 1 .-, 0 between', out)
  end)

  it('writes a plan that `run` takes', function()
    local path = folder .. '/tp.json'
    local out, code = plan('pas_policy=tp --world 2 --plan-out ' .. path)
    assert.equal(0, code, out)
    assert.equal('tp', base.json_decode(base.file_read(path)).policy)
    out, code = shell.nnscaler(('run %s -n 2 pas_policy=%s max_train_steps=1 max_val_steps=1 '
      .. 'checkpoint.save_dir=%s/c gen_savedir=%s/g'):format(job, path, folder, folder))
    assert.equal(0, code, out)
  end)

  it('says what a schedule cannot do with', function()
    local out, code = plan('pas_policy=pp --world 2 grad_accumulation_steps=3 '
      .. 'pas_config.pipeline_scheduler=1f1b_interleaved')
    assert.equal(1, code)
    assert.matches('1f1b_interleaved: 3 micro%-batches on 2 pipeline ranks; expected a multiple '
      .. 'of 2', out)
  end)
end)
