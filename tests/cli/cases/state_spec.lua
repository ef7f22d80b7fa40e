--- What users of such systems ran into with the state of runs: runs that do not repeat themselves,
--- SIGTERM that one rank gets, tied weights under a pipeline, files that are opened for their name.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local python = require 'tests.equivalence.pytorch.python'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local runs = training.new 'tests/cli/jobs/resume.lua'
local gpt = training.new('recipes/nanogpt.lua preset=tiny layers=2 width=16 heads=2 '
  .. 'block=8 micro_batch_size=4')

local function run(of, name, more, code)
  local said, left = shell.nnscaler(of.arguments(name, more))
  assert.equal(code or 0, left, said)
  return said
end

-- Bytes of all tensors of the newest checkpoint.
local function tensors(of, name)
  local path, out = checkpoint.resolve('last', of.folder .. '/' .. name), {}
  for _, file in ipairs(base.list_folder(path)) do
    if file:find '%.safetensors$' then
      out[file] = base.hash(base.file_read(path .. '/' .. file))
    end
  end
  return out, path
end

teardown(function()
  runs.remove()
  gpt.remove()
end)

describe('a run', function()
  it('has the same bits a second time: 50 steps on 4 ranks, with draws and workers', function()
    local rows, files = {}, {}
    for i, name in ipairs { 'first', 'second' } do
      rows[i] = {}
      run(runs, name, 'max_train_steps=50 -n 4 comm.backend=local '
        .. 'dataloader.train_args.num_workers=2')
      files[i] = tensors(runs, name)
      for k, row in ipairs(runs.rows(name)) do
        rows[i][k] = { row.step, row.train_loss, row.gnorm }
      end
    end
    assert.equal(50, #rows[1])
    assert.same(rows[1], rows[2])
    assert.is_not_nil(next(files[1]))
    assert.same(files[1], files[2])
  end)
end)

describe('SIGTERM', function()
  it('in a hook of one rank has all save the same step', function()
    local said = run(runs, 'hook', 'at=7 signal=TERM -n 2', 143)
    assert.matches('Received SIGTERM: stopped after 7 steps', said)
    assert.equal('0001-0007', checkpoint.resolve('last', runs.folder .. '/hook'):match '[^/]+$')
  end)

  -- Rank 1 spends its time in collectives: rank 0 is held up in each step.
  for _, case in ipairs { { 'to the launcher', '$pid' },
    { 'to a rank that waits in a collective', '$(cat %s/pid)' } } do
    local what, whom = unpack(case)
    it(what .. ' has all save the same step', function()
      local name = what:match '%a+$'
      local out = runs.folder .. '/' .. name .. '.out'
      local said, code = shell.run(([[
        '%s' %s > %s 2>&1 & pid=$!
        for i in $(seq 600); do grep -q 'Epoch 1: ' %s && break; sleep 0.1; done
        kill -TERM %s
        wait $pid; rc=$?; cat %s; (exit $rc)]]):format(shell.binary, runs.arguments(name,
        'max_train_steps=100000 max_epochs=100000 held=0.05 pid=' .. runs.folder .. '/pid '
        .. 'log_progress_every_n_train_steps=1 checkpoint.every_n_train_steps=100000 -n 2'), out,
        out, whom:format(runs.folder), out))
      assert.equal(143, code, said)
      local step = tonumber(said:match 'Received SIGTERM: stopped after (%d+) steps')
      local saved = checkpoint.open(checkpoint.resolve('last', runs.folder .. '/' .. name))
      saved:check()
      assert.equal(step, saved.step)
      assert.equal('', shell.processes('save_dir=' .. runs.folder .. '/' .. name .. ' '))
    end)
  end
end)

describe('tied weights', function()
  it('of the first and the last stage are stored once, and Python opens the file', function()
    if python.missing then return pending(python.missing) end
    run(gpt, 'tied', 'pas_policy=pp -n 2 comm.backend=local max_train_steps=2 '
      .. 'checkpoint.save_type=merged val_every_n_train_steps=1000')
    local _, path = tensors(gpt, 'tied')
    local script = 'import sys; from safetensors.numpy import load_file; '
      .. "print(' '.join(sorted(load_file(sys.argv[1]))))"
    local said, code = python.shell(('\'%s\' -c "%s" \'%s/model.safetensors\''):format(
      python.binary, script, path))
    assert.equal('0', code, said)
    local _, times = said:gsub('wte.weight', '')
    assert.equal(1, times, said)
    assert.is_nil(said:find 'lm_head')
    local manifest = base.json_decode(base.file_read(path .. '/manifest.json'))
    local alias
    for _, entry in ipairs(manifest.tensors) do alias = alias or entry.alias and entry end
    assert.same({ name = 'lm_head.weight', alias = 'transformer.wte.weight' }, alias)
    local before = gpt.rows 'tied'
    run(gpt, 'tied', 'pas_policy=dp max_train_steps=2 val_every_n_train_steps=1000 '
      .. 'checkpoint.resume_from=last')
    assert.same(before, gpt.rows 'tied') -- loads, and has nothing left to do
  end)
end)

describe('files of a checkpoint', function()
  it('that its manifest does not name are never opened', function()
    run(runs, 'strange', 'stop_after_steps=10')
    local _, path = tensors(runs, 'strange')
    -- Who opens a pipe that nobody writes to waits for ever.
    for _, name in ipairs { 'optimizer.pt', 'rng_state.pth', 'model.bin', 'data.pkl',
      'pytorch_model.bin' } do
      shell.run(("mkfifo '%s/%s'"):format(path, name))
    end
    for _, command in ipairs {
      runs.arguments('strange', 'checkpoint.resume_from=last stop_after_steps=12'),
      ('checkpoint inspect %s'):format(path), ('checkpoint diff %s %s'):format(path, path),
      ('checkpoint merge %s %s.merged'):format(path, path),
    } do
      local said, code = shell.nnscaler(command, 'timeout 60')
      assert.equal(0, code, said)
    end
  end)
end)
