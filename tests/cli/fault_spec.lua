--- What happens when a rank dies, stops or fails: a selection; all of them are in tests/long.
local faults = require 'tests.cli.support.faults'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'
local sorted = require 'nnscaler.sorted'

describe('a rank that fails takes all with it', function()
  for _, case in ipairs {
    { 'nnscaler run -n', 2, 'kill', 'forward' }, { 'nnscaler run -n', 4, 'lua', 'forward' },
    { 'nnscaler run -n', 2, 'stop', 'collective' }, { 'mpirun', 2, 'cpp', 'forward' },
    { 'mpirun', 2, 'kill', 'collective' }, { 'variables set by hand', 2, 'exit', 'forward' },
    { 'variables set by hand', 2, 'kill', 'forward', 0 },
    { 'variables set by hand', 4, 'stop', 'forward' }, { 'torchrun', 2, 'lua', 'save' },
  } do
    it(('%s, %d ranks: %s in %s, rank %d'):format(case[1], case[2], case[3], case[4], case[5] or 1),
      function() faults.check(unpack(case, 1, 5)) end)
  end

  for _, case in ipairs {
    { 'nnscaler run -n', 2, 'lua' }, { 'mpirun', 2, 'cpp' }, { 'nnscaler run -n', 4, 'exit' },
  } do
    it(('%s, %d ranks: %s while others are in a collective'):format(unpack(case)), function()
      faults.check(case[1], case[2], case[3], 'collective')
    end)
  end

  for fault, code in sorted.sorted_pairs { cpp = 1, exit = 1, kill = 137, lua = 1 } do
    it(('%s: each process has its code, and the port is free'):format(fault), function()
      faults.codes(fault, code)
    end)
  end

  for _, case in ipairs {
    { 'nnscaler run -n', 'policy', 0 }, { 'nnscaler run -n', 'setup', 1 },
    { 'nnscaler run -n', 'hook', 1 }, { 'mpirun', 'policy', 0 }, { 'mpirun', 'data', 1 },
    { 'torchrun', 'policy', 0 }, { 'torchrun', 'setup', 1 },
    { 'variables set by hand', 'policy', 0 }, { 'variables set by hand', 'save', 1 },
  } do
    it(('%s: rank %d says first why it failed in %s'):format(case[1], case[3], case[2]), function()
      faults.cause(case[1], 2, case[2], case[3])
    end)
  end

  it('but a slow one is waited for', function()
    local o = faults.run('nnscaler run -n', 2,
      'fault=sleep where=forward seconds=15 comm.heartbeat_s=0.3')
    assert.equal(0, o.code, o.said)
    assert.matches('rank 1 is slow: it has been in step 3, forward for %d+ s, and rank 0 waits in '
      .. 'step 3', o.said)
  end)

  it('and a call that takes too long is a failure', function()
    local o = faults.run('variables set by hand', 2, 'fault=sleep where=forward seconds=30 '
      .. 'comm.timeout_s=3')
    assert.is_true(o.code ~= 0 and o.seconds < 30, o.said)
    assert.matches('rank 0 failed in step 3[^\n]*: a call took longer than 3 s', o.said)
    assert.equal('', o.left)
  end)
end)

describe('the supervisor', function()
  local folder, remove = shell.folder()
  teardown(remove)

  it('gives on the code of a usage error, said once', function()
    local said, code = launchers.run('nnscaler run -n', 2,
      'run recipes/quickstart.lua no_such=1')
    assert.equal(2, code, said)
    local _, times = said:gsub('unknown key', '')
    assert.equal(1, times, said)
  end)

  for times, code in ipairs { 130, 130 } do
    it(('gives on Ctrl-C: %d'):format(times), function()
      local command = ("'%s' run recipes/nanogpt.lua preset=tiny -n 2 threads=1 "
        .. 'max_train_steps=1000000 val_every_n_train_steps=1000000 '
        .. 'checkpoint.every_n_train_steps=1000000 checkpoint.save_dir=%s/c gen_savedir=%s/g '
        .. 'log_progress_every_n_train_steps=1')
        :format(shell.binary, folder, folder)
      -- `timeout` sends SIGINT to the supervisor alone, as a terminal does.
      local said, got = shell.run(([[
        %s > %s/out 2>&1 & pid=$!
        for i in $(seq 300); do grep -q 'Epoch 0: 0*3/' %s/out && break; sleep 0.1; done
        kill -INT $pid; %s
        wait $pid; rc=$?; cat %s/out; (exit $rc)]]):format(command, folder, folder,
        times == 2 and 'sleep 0.02; kill -INT $pid;' or '', folder))
      assert.equal(code, got, said)
      if times == 1 then
        assert.matches('Received SIGINT: stopped after %d+ steps', said)
        assert.matches('Saving checkpoint', said)
      end
      assert.equal('', shell.processes(('save_dir=%s/c'):format(folder)))
    end)
  end
end)
