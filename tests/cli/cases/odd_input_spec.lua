-- Hostile or odd input: refused in words, or taken as it is meant.
local base = require 'nnscaler._C.base'
local cases = require 'tests.cli.support.cases'
local shell = require 'tests.cli.support.shell'

local case, remove = cases.new()
teardown(remove)
case.write('job.yaml', cases.yaml)

local function recipe(name, text)
  case.write(name, ([[
local nnscaler = require 'nnscaler'
local nn, T, F = nnscaler.nn, nnscaler.tensor, nnscaler.functional
local Net = nn.class 'Net'
%s]]):format(text))
end

describe('numbers of a job', function()
  for _, wrong in ipairs {
    { 'seed_too_large', 'seed=18446744073709551615', "'seed' is the number 18446744073709551615; "
      .. 'expected an integer from 0 to 2^53 - 1' },
    { 'seed_too_large: 2^53', 'seed=9007199254740992', 'from 0 to 2^53 - 1' },
    { 'bucket_cap_message', 'compute_config.reducer_bucket_cap_mb=0',
      "'compute_config.reducer_bucket_cap_mb' is the number 0; expected a number ≥ 0.001" },
    { 'bucket_cap_message: too large', 'compute_config.reducer_bucket_cap_mb=1e300',
      'is the number 1e300; expected a number from 0.001 to 1000000' },
    { 'bucket_cap_message: comm.timeout_s', 'comm.timeout_s=0', 'a number ≥ 0.001' },
    { 'bucket_cap_message: comm.join_timeout_s', 'comm.join_timeout_s=.inf',
      'is the number .inf; expected a number from 0.001 to 1000000000' },
    { 'threads', 'threads=1e12', 'expected an integer from 1 to 4096' },
    { 'a number beyond doubles', 'optimizer.clip_gnorm=1e400', 'is the number 1e400' },
    { 'zero_or_negative_ranks', '-n 0', '[cli.run] -n is 0; expected an integer of at least 1' },
    { 'zero_or_negative_ranks: below', '-n -1', '[cli.run] -n is -1; expected an integer of at '
      .. 'least 1' },
    { 'zero_or_negative_ranks: a fraction', '-n 1.5', "is '1.5'; expected an integer" },
    { 'plan_ngpus_one_rank', 'compute_config.plan_ngpus=2',
      'compute_config.plan_ngpus is 2, but the run has 1 rank(s); expected a multiple of 2' },
    { 'plan_ngpus_one_rank: eager', 'compute_config.plan_ngpus=2 eager=true',
      'compute_config.plan_ngpus is 2, but the run has 1 rank(s)' },
    { 'plan_ngpus_one_rank: both given', 'compute_config.plan_ngpus=2 '
      .. 'compute_config.runtime_ngpus=3', 'compute_config.runtime_ngpus is 3; expected a multiple '
      .. 'of plan_ngpus = 2' },
  } do
    it(wrong[1], function() case.refused({ wrong[3] }, 'job.yaml ' .. wrong[2]) end)
  end

  it('seed_too_large: of generate', function()
    for _, seed in ipairs { '99999999999999999999', '-1' } do
      local said, code = shell.nnscaler('generate x --seed ' .. seed)
      assert.equal(2, code)
      assert.matches('[cli.generate] --seed is ' .. seed .. '; expected', said, 1, true)
    end
  end)

  it('may be as large as they are exact', function()
    local said, code = case.run('job.yaml seed=9007199254740991 max_train_steps=1')
    assert.equal(0, code, said)
  end)
end)

describe('a job file', function()
  -- Runs `nnscaler run` on it within bounds of time and memory; the program alone takes 60 MB.
  local function within(file, seconds, megabytes)
    local out, code = shell.run(("cd %s && timeout 60 '%s' version >/dev/null && /usr/bin/env "
      .. "python3 -c '%s' '%s' run %s --print-config"):format(case.folder, shell.binary, [[
import os, resource, subprocess, sys, time
start = time.time()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True, timeout=60)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.stderr, end="")
print("seconds", used.ru_utime + used.ru_stime, "mb", used.ru_maxrss / 1024)
sys.exit(done.returncode)]], shell.binary, file))
    local took, memory = out:match 'seconds ([%d.]+) mb ([%d.]+)'
    assert.equal(2, code, out)
    assert.is_true(tonumber(took) <= seconds, out)
    assert.is_true(tonumber(memory) <= megabytes, out)
    return out
  end

  it('that is an alias bomb is refused in a second and 100 MB', function()
    local lines = { 'vars:', '  a0: &a0 [x, x, x, x, x, x, x, x, x, x]' }
    for level = 1, 12 do
      local again = {}
      for i = 1, 10 do again[i] = ('*a%d'):format(level - 1) end
      lines[#lines + 1] = ('  a%d: &a%d [%s]'):format(level, level, table.concat(again, ', '))
    end
    case.write('bomb.yaml', table.concat(lines, '\n') .. '\n' .. cases.yaml)
    assert.matches('[job.size] bomb.yaml:', within('bomb.yaml', 1, 100), 1, true)
  end)

  it('that multiplies by $(…) is refused in a second and 100 MB', function()
    local text, list = { 'vars:' }, {}
    for level = 1, 40 do
      text[level + 1] = ('  t%d: $(vars.t%d)$(vars.t%d)'):format(level, level + 1, level + 1)
      list[level] = ('  l%d: [$(vars.l%d), $(vars.l%d)]'):format(level, level + 1, level + 1)
    end
    case.write('text.yaml', table.concat(text, '\n') .. '\n  t41: some words\n' .. cases.yaml)
    assert.matches('more than 100000 values', within('text.yaml', 1, 100), 1, true)
    case.write('list.yaml', 'vars:\n' .. table.concat(list, '\n') .. '\n  l41: 1\n' .. cases.yaml)
    assert.matches('more than 100000 values', within('list.yaml', 1, 100), 1, true)
  end)

  it('that is a recipe whose tables multiply is refused in a second and 100 MB', function()
    case.write('bomb.lua', [[
      local t = { 1 }
      for _ = 1, 40 do t = { t, t } end
      return { vars = { t = t } }]])
    assert.matches('[job.size] bomb.lua', within('bomb.lua', 1, 100), 1, true)
  end)

  it('may repeat what it says a few times', function()
    case.write('alias.yaml', 'vars: { a: &a [4, 8, 2], b: *a }\n'
      .. cases.yaml:gsub('%[4, 8, 2%]', '$(vars.b)'))
    local said, code = case.run 'alias.yaml --print-config'
    assert.equal(0, code, said)
  end)

  it('that is nested too deeply says so, at its place', function()
    for _, depth in ipairs { 60, 600, 100000 } do
      case.write('deep.yaml', cases.yaml .. 'vars: { a: ' .. ('['):rep(depth) .. (']'):rep(depth)
        .. ' }\n')
      local said = case.refused({ 'nested deeper than 50 levels' }, 'deep.yaml')
      assert.matches('%[job.yaml%] deep.yaml:9:%d+: ', said)
    end
  end)

  it('a key that is unknown below one that is set has its place', function()
    case.refused({ "[job.key] command line, foo.bar=1: unknown key 'foo'" }, 'job.yaml foo.bar=1')
    case.refused({ "[job.key] command line, chekpoint.no_save=true: unknown key 'chekpoint'",
      "did you mean 'checkpoint'?" }, 'job.yaml chekpoint.no_save=true')
    case.refused({ "command line, optimizer.arg.lr=1: unknown key 'optimizer.arg'" },
      'job.yaml optimizer.arg.lr=1')
  end)
end)

describe('a path or name with bytes that are no UTF-8', function()
  it('non_utf8_path: trains, saves and goes on there', function()
    local job = cases.yaml:gsub('no_save: true', 'save_dir: ck'):gsub('300', '2')
    base.make_folder(case.folder .. '/d\233')
    case.write('d\233/job.yaml', job)
    local said, code = case.run('job.yaml', "cd 'd\233' &&")
    assert.equal(0, code, said)
    said, code = case.run('job.yaml max_train_steps=3 checkpoint.resume_from=last -n 2 '
      .. 'pas_policy=tp', "cd 'd\233' &&")
    assert.equal(0, code, said)
    assert.matches('Resumed from .*d\233/ck/', said)
    assert.equal('file', base.file_exists(case.folder .. '/d\233/ck/last/manifest.json'))
  end)

  it('non_utf8_path: as name of the run, of the save_dir and of what hooks save', function()
    case.write('user.lua', [[
      local nnscaler = require 'nnscaler'
      return { model = { type = 'mlp', args = { sizes = { 4, 2 } } }, name = 'r\233',
        dataset = nnscaler.data.random_samples { size = 64, width = 4, classes = 2 },
        max_train_steps = 2, optimizer = 'sgd', threads = 1, gen_savedir = 'g\233',
        checkpoint = { save_dir = 's\233' }, comm = { backend = 'local' },
        hook = { on_save_checkpoint = function(_, c) c.user.text = 'h\233' end,
          after_load_checkpoint = function(_, c) print('kept', c.user.text == 'h\233') end } }]])
    local again = 'max_train_steps=3 checkpoint.resume_from=last -n 2 pas_policy=tp'
    for _, how in ipairs { '', again } do
      local said, code = case.run('user.lua ' .. how)
      assert.equal(0, code, said)
      if how ~= '' then assert.matches('kept\ttrue', said) end
    end
  end)

  it('as the name of a field of a model is refused', function()
    recipe('field.lua', [[
function Net:init() self['l\233'] = nn.Linear(4, 2) end
function Net:forward(s) return self['l\233'](s.x):sum() end
return { model = function() return Net() end,
  dataset = nnscaler.data.random_samples { size = 8, width = 4, classes = 2 },
  max_train_steps = 1, optimizer = 'sgd', threads = 1, checkpoint = { no_save = true } }]])
    local said, code = case.run 'field.lua'
    assert.equal(1, code)
    assert.matches("[nn.names] a field of a Net has the name 'l\233'; expected a text in UTF-8",
      said, 1, true)
  end)
end)

describe('a model', function()
  it('many_lengths: the limit of programs is said once, and a key', function()
    recipe('lengths.lua', [[
local p = nnscaler.params { lens = { 6, 'lengths' } }
function Net:init() self.e, self.o = nn.Embedding(9, 4), nn.Linear(4, 9) end
function Net:forward(s)
  return F.cross_entropy(self.o(self.e(s.ids)):flatten(0, 1), s.ids:flatten())
end
return { model = function() return Net() end,
  dataset = { len = function() return 24 end,
    get = function(_, i) return { ids = T.arange(3 + i % p.lens) % 9 } end },
  micro_batch_size = 1, max_train_steps = 24, optimizer = 'sgd', threads = 1, gen_savedir = 'gl',
  checkpoint = { no_save = true }, enable_progress_bar = false }]])
    local function count(text, what) return select(2, text:gsub(what, '')) end
    local said, code = case.run 'lengths.lua max_programs=4'
    assert.equal(0, code, said)
    assert.equal(1, count(said, 'WARNING'), said)
    assert.matches('more than 4 shapes of its inputs.*max_programs=N keeps more', said)
    assert.is_true(count(said, 'specialised to') <= 6, said)
    said, code = case.run 'lengths.lua max_programs=6'
    assert.equal(0, code, said)
    assert.equal(0, count(said, 'WARNING'), said)
  end)

  local scalar = [[
function Net:init() self.a = nn.Linear(4, 3) end
function Net:forward(s)
  local logits = self.a(s.x)
  local accuracy = logits:argmax(-1):eq(s.y):float():mean()
  local loss = F.cross_entropy(logits, s.y)
  %s
  return loss
end
return { model = function() return Net() end,
  dataset = { type = function(a) return { len = function() return a.n end, get = function(_, i)
    return { x = T.full({ 4 }, i / 8), y = T.tensor(i %% 3, { dtype = 'int64' }) } end } end,
    train_args = { n = 8 }, val_args = { n = 4 } },
  micro_batch_size = 4, max_train_steps = 1, optimizer = 'sgd', threads = 1, gen_savedir = 'gs',
  checkpoint = { no_save = true } }]]

  it('unused_scalar: a metric that only evaluation returns is not a branch', function()
    local losses = {}
    for i, eager in ipairs { 'false', 'true' } do
      recipe('scalar.lua', scalar:format 'if not self.training then return loss, accuracy end')
      local said, code = case.run(('scalar.lua eager=%s --metrics s%d.jsonl'):format(eager, i))
      assert.equal(0, code, said)
      losses[i] = cases.rows(('%s/s%d.jsonl'):format(case.folder, i))[1]
    end
    for _, name in ipairs { 'train_loss', 'val_loss' } do
      assert.is_true(math.abs(losses[1][name] - losses[2][name]) <= 1e-6 * losses[2][name], name)
    end
  end)

  for _, branch in ipairs {
    'if accuracy then return loss * 2 end', 'local twice = accuracy and loss * 2',
    'if pick(accuracy) then return loss end', 'return pick(loss, accuracy)',
    'self.kept = { accuracy }', 'while accuracy do break end', 'local a = not accuracy',
  } do
    it('unused_scalar: a branch on it is refused: ' .. branch, function()
      recipe('scalar.lua', 'local function pick(x, y) return y and x or x end\n'
        .. scalar:format(branch:find '^return' and 'if true then ' .. branch .. ' end' or branch))
      local said, code = case.run 'scalar.lua'
      assert.equal(1, code)
      assert.matches('[trace.branch] nothing uses float32[] that aten::mean makes', said, 1, true)
    end)
  end

  it('second_derivative: gradients of gradients are for eager=true', function()
    recipe('second.lua', [[
function Net:init()
  self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
end
function Net:forward(s)
  local u = self.net(s.x):sum()
  local g = T.grad(u, self.net[1].weight, { create_graph = true })[1]
  return u:square() + g:square():sum()
end
return { model = function() return Net() end,
  dataset = { len = function() return 8 end,
    get = function(_, i) return { x = T.full({ 3 }, i / 10) } end },
  micro_batch_size = 4, max_train_steps = 1, optimizer = 'sgd', precision = 'fp64', threads = 1,
  checkpoint = { no_save = true }, gen_savedir = 'g2' }]])
    local said, code = case.run 'second.lua'
    assert.equal(1, code)
    assert.matches('a program has no gradients of gradients; eager=true trains such a model', said,
      1, true)
    assert.matches('second.lua:9', said, 1, true)
    said, code = case.run 'second.lua eager=true'
    assert.equal(0, code, said)
  end)

  it('takes integers of T.arange as indices and labels', function()
    recipe('arange.lua', [[
function Net:init() self.e, self.o = nn.Embedding(9, 4), nn.Linear(4, 5) end
function Net:forward(s)
  local positions = self.e(T.arange(5))
  return F.cross_entropy(self.o(positions + s.x:unsqueeze(-1)):flatten(0, 1), s.y:flatten())
end
return { model = function() return Net() end,
  dataset = { len = function() return 8 end,
    get = function(_, i) return { x = T.full({ 5 }, i / 8), y = T.arange(5) } end },
  micro_batch_size = 4, max_train_steps = 1, optimizer = 'sgd', threads = 1, gen_savedir = 'ga',
  checkpoint = { no_save = true } }]])
    local said, code = case.run 'arange.lua'
    assert.equal(0, code, said)
  end)
end)
