--- Checkpoints that are written beside training, copies instead of links, and a limit on the time
--- that a run takes to end.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local runs = training.new 'tests/cli/jobs/resume.lua'
local every = 'checkpoint.every_n_train_steps=3 '

local function run(name, more, code)
  local out, left = shell.nnscaler(runs.arguments(name, more))
  assert.equal(code, left, out)
  return out
end

-- Bytes of all tensors of a save folder, by checkpoint and file; where its links lead.
local function saved(name)
  local out, dir = {}, runs.folder .. '/' .. name
  for _, item in ipairs(checkpoint.list(dir)) do
    checkpoint.open(item.path):check()
    for _, file in ipairs(base.list_folder(item.path)) do
      if file:find '%.safetensors$' then
        out[item.name .. '/' .. file] = base.hash(base.file_read(item.path .. '/' .. file))
      end
    end
  end
  out.last = checkpoint.resolve('last', dir):match '[^/]+$'
  return out
end

local function losses(name)
  local rows = {}
  for _, row in ipairs(runs.rows(name)) do rows[row.step] = { row.train_loss, row.gnorm } end
  return rows
end

teardown(runs.remove)

describe('a checkpoint beside training', function()
  for _, case in ipairs {
    { 'one rank', 'one', '' }, { 'two ranks', 'two', '-n 2 comm.backend=local' },
    { 'whole tensors of two ranks', 'whole',
      '-n 2 comm.backend=local checkpoint.save_type=merged' },
    { 'two ranks that share weights', 'zero',
      '-n 2 comm.backend=local compute_config.use_zero=3' },
  } do
    local what, name, more = unpack(case)
    it('is that of before it, with ' .. what, function()
      run(name, every .. more, 0)
      local said = run(name .. '.async', every .. 'checkpoint.async=true ' .. more, 0)
      assert.matches('Checkpoint [^\n]*/0000%-0003 is written, in [%d.]+ s beside training, '
        .. 'which waited [%d.]+ s', said)
      local want = saved(name)
      assert.is_not_nil(want.last)
      assert.same(want, saved(name .. '.async'))
      assert.same(losses(name), losses(name .. '.async'))
    end)
  end

  it('is that of before a hook changes weights', function()
    run('nudged', every .. 'nudge=0.9', 0)
    run('nudged.async', every .. 'nudge=0.9 checkpoint.async=true', 0)
    assert.same(saved 'nudged', saved 'nudged.async')
    assert.is_false(saved('nudged')['0000-0003/model.safetensors']
      == saved('one')['0000-0003/model.safetensors'])
  end)

  it('is waited for by a loss that is not a number, which names it', function()
    local said = run('nan', 'checkpoint.every_n_train_steps=1 checkpoint.async=true '
      .. 'optimizer.args.lr=1e30', 1)
    local named = said:match 'last good checkpoint: ([^\n]*/nan/[%d-]+)'
    checkpoint.open(named):check()
  end)

  it('goes on after ranks were killed', function()
    local more = every .. '-n 2 checkpoint.async=true '
    run('killed', more .. '--max-restarts 1 at=7 once=' .. runs.folder .. '/once', 0)
    assert.same(losses 'two', losses 'killed')
    assert.equal(saved('two').last, saved('killed').last)
  end)

  for _, n in ipairs { 1, 2 } do
    it(('that does not fit on the disk is said by a run of %d rank(s)'):format(n), function()
      local name = 'full' .. n
      local dir = runs.folder .. '/' .. name
      local job = ('run tests/cli/jobs/resume.lua -n %d comm.backend=local log_level=warning '
        .. 'checkpoint.save_dir=%s gen_savedir=%s.gen checkpoint.async=true %s'):format(n, dir, dir,
        every)
      local said, code = shell.nnscaler(job .. 'stop_after_steps=3')
      assert.equal(0, code, said)
      -- A limit on the size of files stands in for a full disk.
      said, code = shell.nnscaler(job .. 'checkpoint.resume_from=last',
        "trap '' XFSZ; ulimit -f 1;")
      assert.equal(1, code, said)
      assert.matches("%[checkpoint.save%] [^\n]*cannot write '[^\n]*safetensors': File too large",
        said)
      assert.matches('the checkpoints before it are whole; the newest is [^\n]*/0000%-0003', said)
      assert.same({ '0000-0003', 'best', 'last', 'loss.svg' }, base.list_folder(dir))
      saved(name)
    end)
  end
end)

describe('best and last', function()
  it('are copies where links are not wanted, and a run goes on from them', function()
    local more = 'checkpoint.symlink_best_and_last=false checkpoint.every_n_train_steps=5 '
      .. 'checkpoint.keep_last_n_checkpoints=1 '
    run('copies', more .. 'stop_after_steps=10', 0)
    local dir = runs.folder .. '/copies'
    assert.same({ '0001-0010', 'best', 'last', 'loss.svg' }, base.list_folder(dir))
    os.execute(("rm -r '%s/0001-0010'"):format(dir))
    local said = run('copies', more .. 'checkpoint.resume_from=last', 0)
    assert.matches('Resumed from %S+/last after 10 steps', said)
    assert.same(losses 'one', losses 'copies')
  end)
end)

describe('a run that got SIGTERM', function()
  local late = every .. 'at=7 signal=TERM slow=%d checkpoint.grace_s=%d'

  it('saves within checkpoint.grace_s', function()
    run('soon', late:format(0, 60), 143)
    assert.equal('0001-0007', saved('soon').last)
  end)

  it('ends when that is over, and says what is saved', function()
    local began = base.clock()
    local said = run('late', late:format(30, 1), 143)
    assert.is_true(base.clock() - began < 20)
    assert.matches('error: %[trainer.grace%] the run did not end within checkpoint.grace_s = 1 s '
      .. 'of SIGTERM; it ends now, and nothing is saved of the steps since checkpoint '
      .. '[^\n]*/late/0000%-0006\n', said)
    assert.equal('0000-0006', saved('late').last)
  end)
end)
