-- `nnscaler run --max-restarts N`: ranks that are killed start again from the newest checkpoint,
-- and the run ends with the curve of one that nobody disturbed, bit for bit.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local runs = training.new 'tests/cli/jobs/resume.lua'

-- Losses, rates and norms by step; of a step that was done twice those of the last time.
local function curve(name)
  local rows = {}
  for _, row in ipairs(runs.rows(name)) do
    rows[row.step] = { row.train_loss, row.lr, row.gnorm }
  end
  return rows
end

local function run(name, more)
  local out, code = shell.nnscaler(runs.arguments(name, more))
  return out, code
end

describe('restarts', function()
  teardown(runs.remove)
  local every = 'checkpoint.every_n_train_steps=3 '

  it('end with the curve of an undisturbed run', function()
    local out, code = run('whole', every .. '-n 2')
    assert.equal(0, code, out)
    -- The process ends after step 7 of its first life; `once` makes the file that it looks for.
    out, code = run('killed', every .. '-n 2 --max-restarts 2 at=7 once=' .. runs.folder .. '/once')
    assert.equal(0, code, out)
    assert.matches('rank 0 was lost', out)
    assert.matches('Restart 1 of 2, from [^\n]*killed/0000%-0006', out)
    assert.is_nil(out:find('Restart 2', 1, true))
    local want, got = curve 'whole', curve 'killed'
    assert.equal(20, #want)
    assert.same(want, got)
    local a = checkpoint.open(checkpoint.resolve('last', runs.folder .. '/whole'))
    local b = checkpoint.open(checkpoint.resolve('last', runs.folder .. '/killed'))
    for _, name in ipairs(a:names()) do assert.is_true(a:read(name):equal(b:read(name)), name) end
  end)

  it('of torchrun go on from the last checkpoint', function()
    if base.file_exists(launchers.venv .. '/bin/torchrun') ~= 'file' then
      return pending 'no torchrun'
    end
    local out, code = launchers.run('torchrun that starts again once', 2, runs.arguments(
      'torchrun', every .. 'checkpoint.resume_from=last at=7 once=' .. runs.folder .. '/twice'))
    assert.equal(0, code, out)
    assert.matches('Resumed from [^\n]*torchrun/0000%-0006 after 6 steps', out)
    assert.same(curve 'whole', curve 'torchrun')
  end)

  it('are as many as were asked for, and take no checkpoint of another run', function()
    local out, code = run('whole', every .. '-n 2 --max-restarts 1 at=2')
    assert.not_equal(0, code)
    assert.matches('Restart 1 of 1, from the beginning', out)
    local _, lost = out:gsub('rank 0 was lost in [^\n]*\n', '')
    assert.is_true(lost >= 2, out)
  end)

  it('do not follow a wrong job, and are for processes', function()
    local out, code = run('wrong', '-n 2 --max-restarts 1 no_such_key=1')
    assert.equal(2, code)
    assert.is_nil(out:find('Restart', 1, true))
    out, code = run('threads', '-n 2 --max-restarts 1 comm.backend=local')
    assert.equal(2, code)
    assert.matches('%-%-max%-restarts is for ranks that nnscaler starts as processes', out)
  end)

  it('find the older checkpoint whole where a rank could not write', function()
    local dir = runs.folder .. '/full'
    local job = ('run tests/cli/jobs/resume.lua -n 2 comm.backend=local checkpoint.save_dir=%s '
      .. 'gen_savedir=%s.gen log_level=warning %s'):format(dir, dir, every)
    local out, code = shell.nnscaler(job .. 'stop_after_steps=3')
    assert.equal(0, code, out)
    -- A limit on the size of files stands in for a full disk: files of programs are there already.
    out, code = shell.nnscaler(job .. 'checkpoint.resume_from=last',
      "trap '' XFSZ; ulimit -f 1;")
    assert.equal(1, code, out)
    assert.matches("%[checkpoint.save%] rank %d: cannot write '[^\n]*%d%-of%-00002.safetensors': "
      .. 'File too large', out)
    assert.matches('the checkpoints before it are whole; the newest is [^\n]*full/0000%-0003', out)
    assert.equal(1, #checkpoint.list(dir))
    checkpoint.open(checkpoint.resolve('last', dir)):check()
    for _, name in ipairs(base.list_folder(dir)) do
      assert.is_nil(name:find('writing', 1, true))
    end
  end)
end)
