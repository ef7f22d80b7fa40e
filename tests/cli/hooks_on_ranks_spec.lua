--- What hooks do in runs of several ranks: decide alone, change the model, look at weights.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
local kTwo = '-n 2 comm.backend=local '

-- Runs a job of tests/cli/jobs; returns what it said, its exit code and its losses.
local function run(job, options)
  local metrics = folder .. '/metrics.jsonl'
  os.remove(metrics)
  shell.run(('rm -rf %s/ck'):format(folder))
  local said, code = shell.nnscaler(('run tests/cli/jobs/%s.lua folder=%s --metrics %s %s')
    :format(job, folder, metrics, options), 'timeout 100')
  local losses = {}
  for line in (base.file_exists(metrics) and base.file_read(metrics) or ''):gmatch '[^\n]+' do
    losses[#losses + 1] = base.json_decode(line).train_loss
  end
  return said, code, losses
end

local function close(want, got, said)
  assert.equal(#want, #got, said)
  for i, x in ipairs(want) do
    assert.is_true(math.abs(got[i] / x - 1) <= 1e-11, ('step %d: %.17g, not %.17g\n%s'):format(i,
      got[i], x, said))
  end
end

describe('one rank decides in a hook', function()
  teardown(remove)

  for _, on in ipairs { 'on_step_end', 'on_train_step_start', 'on_val_end' } do
    it('stop_on_one_rank: all ranks stop, asked in ' .. on, function()
      local every = on == 'on_val_end' and ' val_every_n_train_steps=1' or ''
      local said, code, losses = run('decide', kTwo .. 'pas_policy=dp what=stop on=' .. on .. every)
      assert.equal(0, code, said)
      assert.matches('Stopped by trainer:stop%(%) after 2 steps', said)
      local steps = on == 'on_train_step_start' and 3 or 2
      assert.equal(steps, tonumber(said:match 'after (%d+) steps with loss'), said)
      assert.is_true(#losses >= steps, said)
      assert.equal('file', base.file_exists(('%s/ck/0000-%04d/manifest.json')
        :format(folder, steps)), said)
    end)
  end

  it('saves', function()
    local said, code = run('decide', kTwo .. 'pas_policy=tp what=save')
    assert.equal(0, code, said)
    for _, step in ipairs { 2, 6 } do
      assert.equal('file', base.file_exists(('%s/ck/0000-%04d/manifest.json')
        :format(folder, step)), said)
    end
  end)

  it('evaluates', function()
    local said, code = run('decide', kTwo .. 'pas_policy=pp what=evaluate')
    assert.equal(0, code, said)
    assert.matches('validation after 2 steps', said)
  end)

  it('leaves out an update', function()
    local said, code, two = run('decide', kTwo .. 'pas_policy=tp what=skip on=after_gnorm_clip')
    assert.equal(0, code, said)
    assert.matches('step 3: no update, as a hook has asked', said)
    local alone, ok, one = run('decide', 'what=skip on=on_train_step_end who=0')
    assert.equal(0, ok, alone)
    for i, x in ipairs(one) do assert.is_true(math.abs(two[i] / x - 1) < 1e-5, said) end
  end)

  it('save() where nothing is saved is refused', function()
    local said, code = run('decide', 'what=save who=0 checkpoint.no_save=true')
    assert.equal(2, code, said)
    assert.matches('trainer:save%(%) in a run with checkpoint.no_save', said)
  end)
end)

describe('a hook that changes the model', function()
  local plans = { beta = { '', 'dp', 'fsdp' }, drop = { '', 'tp' }, freeze = { '', 'dp', 'pp' },
    count = { 'tp' } }
  for _, what in ipairs { 'beta', 'drop', 'freeze', 'count' } do
    it('field_changed_by_hook: ' .. what .. ' is seen in the next step', function()
      local eager, code, want = run('change', 'eager=true what=' .. what)
      assert.equal(0, code, eager)
      assert.equal(5, #want, eager)
      for _, policy in ipairs(plans[what]) do
        local plan = policy ~= '' and kTwo .. 'pas_policy=' .. policy or ''
        local said, ok, got = run('change', plan .. ' what=' .. what)
        assert.equal(0, ok, said)
        close(want, got, said)
        assert.matches('the model has changed %(', said)
      end
    end)
  end

  it('and puts another layer into it is refused', function()
    local said, code = run('change', 'what=layer')
    assert.equal(1, code, said)
    assert.matches("'b' of the model is another module than at the start of the run", said)
  end)

  for _, policy in ipairs { 'dp', 'tp' } do
    it('on one rank alone is refused under ' .. policy, function()
      local said, code = run('change', kTwo .. 'what=alone pas_policy=' .. policy)
      assert.equal(1, code, said)
      assert.matches('rank 1 has changed the model in another way than rank 0', said)
    end)
  end
end)

describe('a hook that looks at weights', function()
  it('weights_in_hook: reads and writes what its rank holds, and all of it', function()
    local function seen(options)
      local said, code = run('look', options)
      assert.equal(0, code, said)
      local list = {}
      for step, name, norm in said:gmatch '(%d) ([ab]%.%w+) ([%d.e-]+)' do
        list[#list + 1] = { step .. name, tonumber(norm) }
      end
      assert.equal(12, #list, said)
      return list
    end
    local want = seen ''
    for _, plan in ipairs { 'eager=true', kTwo .. 'pas_policy=dp', kTwo .. 'pas_policy=fsdp',
      kTwo .. 'pas_policy=tp', kTwo .. 'pas_policy=pp' } do
      for i, got in ipairs(seen(plan)) do
        assert.equal(want[i][1], got[1], plan)
        assert.is_true(math.abs(got[2] - want[i][2]) <= 1e-10, plan .. ': ' .. got[1])
      end
    end
  end)
end)
