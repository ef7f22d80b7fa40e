-- What the user reads who makes a mistake in a job, on the command line, or in a script.
local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.job'
local door = require 'nnscaler._C.tensor'
local shell = require 'tests.cli.support.shell'

local build = (os.getenv 'NNSCALER_BIN' or 'build/nnscaler'):match '^(.*)/' or '.'

local folder, remove = shell.folder()
teardown(remove)

local function file(name, text)
  base.file_write(folder .. '/' .. name, text)
  return folder .. '/' .. name
end

-- Runs `nnscaler run FILE` on a file of this text; the folder is cut from what it says.
local function run(name, text, changes)
  local said, code = shell.nnscaler(('run %s --print-config %s'):format(file(name, text),
    changes or ''))
  return (said:gsub(folder:gsub('%p', '%%%0') .. '/', '')), code
end

local function refused(expected, said, code)
  assert.equal(expected, (said:gsub('\n$', '')))
  assert.equal(2, code)
end

local yaml = 'model: mlp\ndataset: random_samples\noptimizer: adamw\nmax_train_steps: 3\n'
local recipe = [[
local nnscaler = require 'nnscaler'
local p = nnscaler.params {
  layers = { 2, 'number of blocks', min = 1 },
  act = { 'gelu', 'activation', choices = { 'gelu', 'relu' } },
}
return {
  model = { type = 'mlp', args = { n = p.layers, act = p.act } },
  dataset = { len = function() return 1 end, get = function() end },
  optimizer = 'adamw',
  max_train_steps = 3,
  %s
}
]]

describe('a YAML job', function()
  it('with an unknown key', function()
    refused([[
error: [job.key] a.yaml:5:1: unknown key 'micro_bach_size'
hint: did you mean 'micro_batch_size'?]],
      run('a.yaml', yaml .. 'micro_bach_size: 2\n'))
  end)

  it('with a duplicate key', function()
    refused("error: [job.key] a.yaml:5:1: duplicate key 'optimizer', first written at a.yaml:3:1",
      run('a.yaml', yaml .. 'optimizer: sgd\n'))
  end)

  it('with a mistyped value', function()
    refused("error: [job.type] a.yaml:5:1: 'micro_batch_size' is the text 'two'; "
      .. 'expected an integer ≥ 1',
      run('a.yaml', yaml .. 'micro_batch_size: two\n'))
  end)

  it('with a negative count', function()
    refused("error: [job.type] a.yaml:5:15: 'checkpoint.keep_last_n_checkpoints' is the number -1; "
        .. 'expected an integer ≥ 1',
      run('a.yaml', yaml .. 'checkpoint: { keep_last_n_checkpoints: -1 }\n'))
  end)

  it('that is no YAML', function()
    local said, code = run('a.yaml', 'model: [mlp\n')
    assert.matches('^error: %[job.yaml%] a.yaml:2:1: ', said)
    assert.equal(2, code)
  end)

  it('is completed', function()
    local said, code = run('a.yaml', yaml, 'optimizer.args.lr=1e-4 seed=7 checkpoint.save_last!')
    assert.equal(0, code)
    assert.matches('\n  args:\n    lr: 0%.0001\n', said)
    assert.matches('\nseed: 7\n', said)
    assert.matches('\n  save_last: true\n', said)
  end)
end)

describe('a recipe', function()
  it('with an unknown key', function()
    refused([[
error: [job.key] r.lua:11: unknown key 'max_epoch'
hint: did you mean 'max_epochs'?]],
      run('r.lua', recipe:format 'max_epoch = 2,'))
  end)

  it('with an unknown key in a table', function()
    refused([[
error: [job.key] r.lua:13: unknown key 'checkpoint.keep_last'
hint: did you mean 'checkpoint.save_last'?]],
      run('r.lua', recipe:format '\n  checkpoint = { no_save = true,\n keep_last = 2 },'))
  end)

  it('with a duplicate key', function()
    refused("error: [job.key] r.lua:11: duplicate key 'optimizer', first written at r.lua:9",
      run('r.lua', recipe:format 'optimizer = 3'))
  end)

  it('with a mistyped value', function()
    refused("error: [job.type] r.lua:11: 'seed' is an empty table; expected an integer ≥ 0",
      run('r.lua', recipe:format 'seed = {},'))
  end)

  it('whose table is computed gets the line of its return', function()
    refused([[
error: [job.key] r.lua:4: unknown key 'modle'
hint: did you mean 'model'?]],
      run('r.lua', 'local t = {}\nt.modle = 3\nt.seed = 1\nreturn t\n'))
  end)

  it('that returns no table', function()
    refused([[
error: [job.table] r.lua:2: the recipe returns the number 1; expected a table of keys
hint: end the recipe with return { model = …, dataset = …, … }]],
      run('r.lua', 'local x = 1\nreturn x'))
  end)

  it('that is wrong Lua', function()
    refused("error: [job.load] r.lua:2: unexpected symbol near '='",
      run('r.lua', 'return {\n  seed = = 1 }'))
  end)

  it('that fails shows the stack with its lines', function()
    local said, code = run('r.lua', 'local function width(x)\n  return x.width\nend\n'
      .. 'return { model = width(nil) + 1 }\n')
    assert.matches("^error: r.lua:2: attempt to index local 'x' %(a nil value%)\n", said)
    assert.matches("r.lua:2: in function 'width'", said)
    assert.matches('r.lua:4: in main chunk', said)
    assert.is_nil(said:find 'C++ backtrace')
    assert.equal(1, code)
  end)

  it('that misspells a variable', function()
    local said = run('r.lua', 'return { seed = sede }')
    assert.matches("^error: r.lua:1: undeclared global 'sede' read\n", said)
  end)

  it('that is bytecode', function()
    refused("error: [job.load] 'r.lua' is Lua bytecode; expected source text",
      run('r.lua', string.dump(load 'return {}')))
  end)

  it('that is not there', function()
    refused("error: [job.load] cannot read 'no_such.lua': No such file or directory",
      shell.nnscaler 'run no_such.lua')
    refused([[
error: [job.load] 'notes.txt' is not a job
hint: a job is a .lua or a .yaml file]],
      shell.nnscaler 'run notes.txt')
  end)

  it('takes its parameters and keys from the command line', function()
    local said, code = run('r.lua', recipe:format '', 'layers=5 act=relu model.args.more=[1,2]')
    assert.equal(0, code)
    assert.matches('act: relu\n    n: 5\n    more:\n      %- 1\n', said)
  end)

  it('names the nearest of its parameters', function()
    refused([[
error: [job.key] command line, layer=5: unknown key 'layer'
hint: did you mean 'layers'?]],
      run('r.lua', recipe:format '', 'layer=5'))
  end)

  it('checks its parameters', function()
    local text = recipe:format ''
    refused([[
error: [params.value] command line, layers=many: 'layers' is the text 'many'; expected a number
hint: number of blocks]],
      run('r.lua', text, 'layers=many'))
    refused([[
error: [params.value] command line, layers=-1: 'layers' is -1; expected at least 1
hint: number of blocks]],
      run('r.lua', text, 'layers=-1'))
    refused([[
error: [params.value] command line, act=tanh: 'act' is the text 'tanh'; expected one of gelu, relu
hint: activation]],
      run('r.lua', text, 'act=tanh'))
  end)

  it('lists them', function()
    local said, code = shell.nnscaler(('run %s --help'):format(file('r.lua', recipe:format '')))
    assert.equal(0, code)
    assert.matches('\n  act=gelu  activation %(gelu, relu%)\n  layers=2  number of blocks\n', said)
  end)

  it('may not call a parameter as a key', function()
    local said = run('r.lua', "require 'nnscaler'.params { seed = { 1, 'x' } }\nreturn {}")
    assert.matches("parameter 'seed' has the name of a configuration key", said)
  end)

  it('finds modules in its own folder, from any folder', function()
    base.make_folder(folder .. '/parts')
    file('parts/base.lua', 'return { seed = 41 }')
    file('r.lua', "local b = require 'parts.base'\n" .. recipe:format 'seed = b.seed + 1,')
    local said, code = shell.nnscaler(('run %s/r.lua --print-config'):format(folder), 'cd / &&')
    assert.equal(0, code)
    assert.matches('\nseed: 42\n', said)
  end)
end)

describe('the command line', function()
  it('explains itself', function()
    local said, code = shell.nnscaler 'help'
    assert.equal(0, code)
    local names = { 'run', 'compile', 'plan', 'profile', 'generate', 'checkpoint', 'doctor', 'test',
      'verify', 'version' }
    for _, name in ipairs(names) do
      assert.matches('\n  ' .. name .. ' ', said)
      local help, rc = shell.nnscaler(name .. ' --help')
      assert.equal(0, rc)
      assert.matches('usage: nnscaler ' .. name, help)
      assert.equal(help, (shell.nnscaler('help ' .. name)))
    end
  end)

  it('refuses what it does not know', function()
    refused("error: [cli.command] unknown command 'runn'\nhint: did you mean 'run'?",
      shell.nnscaler 'runn')
    refused("error: [cli.run] unknown option '--metrix'\nhint: did you mean '--metrics'?",
      shell.nnscaler 'run a.lua --metrix x')
    refused('error: [cli.run] JOB is missing\nhint: usage: nnscaler run JOB [CHANGES…] [options]',
      shell.nnscaler 'run')
    refused("error: [cli.generate] --tokens is 'many'; expected an integer",
      shell.nnscaler 'generate x --tokens many')
    refused("error: [job.load] cannot read 'a.lua': No such file or directory",
      shell.nnscaler 'run a.lua seed')
  end)

  it('says its version without opening LibTorch', function()
    local said, code = shell.nnscaler('version', 'LD_DEBUG=files')
    assert.equal(0, code)
    assert.matches('nnscaler ' .. base.version:gsub('%p', '%%%0') .. '\n', said)
    assert.is_nil(said:find 'libtorch')
  end)

  it('examines the machine', function()
    local said, code = shell.nnscaler 'doctor'
    assert.equal(0, code)
    for _, what in ipairs { 'nnscaler ', 'LuaJIT ', 'LibTorch ', 'devices +cpu', 'processors ',
      'back ends ', 'HiGHS ' } do
      assert.matches('\n?' .. what, said)
    end
  end)

  it('says that a processor without AVX2 runs slower code', function()
    for _, isa in ipairs { 'plain', 'sse4' } do
      local said = shell.nnscaler('doctor', 'NNSCALER_ISA=' .. isa)
      assert.matches('our kernels +' .. isa .. ' of ', said)
      assert.matches(('\nwarning: our kernels run as %s code, without AVX2: '):format(isa), said)
    end
    assert.is_nil(shell.nnscaler('doctor', 'NNSCALER_ISA=avx2'):find 'without AVX2')
  end)

  -- Where there are an nvcc that compiles and a LibTorch for GPUs, kernels for GPUs are not left
  -- out unnoticed.
  it('says which GPUs our kernels are built for', function()
    local said = shell.nnscaler 'doctor'
    local line = said:match '\n  for GPUs +([^\n]+)'
    local options = base.json_decode(base.file_read(build
      .. '/meson-info/intro-buildoptions.json'))
    local toolkit, wanted
    for _, option in ipairs(options) do
      if option.name == 'toolkit_dir' then toolkit = option.value end
      if option.name == 'cuda' then wanted = option.value ~= 'disabled' end
    end
    local _, code = shell.run(toolkit .. '/bin/nvcc -std=c++20 -gencode '
      .. 'arch=compute_90,code=sm_90 -x cu -c /dev/null -o /dev/null')
    local torch = base.file_exists(door.build_info().folder .. '/libtorch_cuda.so') == 'file'
    if wanted and torch and code == 0 then
      assert.matches('^our kernels built for sm_80, sm_90 and later; ', line)
      assert.matches(door.cuda_count() > 0 and 'in use$' or 'no GPU here$', line)
    else
      assert.equal('this build has none (no nvcc of the CUDA toolkit, or a LibTorch without CUDA)',
        line)
    end
  end)

  it('lists the back ends that work, and why the others do not', function()
    local said = shell.nnscaler 'doctor'
    local list = said:match '\nback ends +([^\n]+)'
    for _, backend in ipairs(require('nnscaler._C.comm').backends()) do
      local usable = (', ' .. list .. ','):find(', ' .. backend.name .. ',', 1, true) ~= nil
      assert.equal(backend.problem == '', usable)
      if not usable then
        assert.matches(('\n  no %s +%s'):format(backend.name, backend.problem:gsub('%p', '%%%0')),
          said)
      end
    end
    for _, name in ipairs { 'local', 'gloo', 'mpi' } do assert.matches(name, list) end
  end)

  it('writes the configuration reference that is in docs', function()
    assert.equal(base.file_read 'docs/configuration.md', core.document())
  end)
end)

describe('a script', function()
  it('gets its arguments and may end the process', function()
    local path = file('s.lua', [[
#!/usr/bin/env nnscaler
local first, second = ...
print(first, second, arg[2], require('nnscaler').params { n = { 1, 'count' } }.n)
io.stdout:write 'buffered'
os.exit(5)
]])
    local said, code = shell.nnscaler(path .. ' --flag n=4')
    assert.equal('--flag\tn=4\tn=4\t4\nbuffered', said)
    assert.equal(5, code)
  end)

  it('that fails says where, with the stack of C++ only when asked', function()
    local path = file('s.lua', 'local function deep() error "boom" end\n'
      .. 'coroutine.wrap(function() deep() end)()\n')
    local said, code = shell.nnscaler(path)
    assert.equal(1, code)
    assert.matches('^error: .*s.lua:1: boom\n', said)
    assert.matches("in function 'deep'", said)
    path = file('s.lua', "require('nnscaler._C.base').file_read '/none'\n")
    said, code = shell.nnscaler(path)
    assert.equal("error: [file.read] cannot read '/none': No such file or directory\n", said)
    assert.equal(2, code)
    said = shell.nnscaler(path, 'NNSCALER_DEBUG=1')
    assert.matches('stack traceback:.*C%+%+ backtrace:.*nns::read_file', said)
  end)

  it('prints whole lines, also beside another', function()
    local path = file('s.lua', "local c = ... for _ = 1, 300 do print(c:rep(1500)) end")
    local said = shell.run(("{ '%s' %s a & '%s' %s b & wait; } | cat"):format(shell.binary, path,
      shell.binary, path))
    local lines = 0
    for line in said:gmatch '[^\n]+' do
      assert.is_true(line == ('a'):rep(1500) or line == ('b'):rep(1500), 'a torn line')
      lines = lines + 1
    end
    assert.equal(600, lines)
  end)

  it('that overflows the stack or raises a table ends as an error', function()
    local said, code = shell.nnscaler(file('s.lua',
      'local function f() return 1 + f() end\nf()\n'))
    assert.matches('^error: .*stack overflow', said)
    assert.equal(1, code)
    said, code = shell.nnscaler(file('s.lua', 'error { code = 3 }'))
    assert.matches('^error: %(the error value is a table%)\n', said)
    assert.equal(1, code)
  end)

  it('starts a trainer; mistakes are at its own line', function()
    local said, code = shell.nnscaler(file('s.lua', [[
local nnscaler = require 'nnscaler'
local args = { max_train_stepps = 3 }

nnscaler.Trainer(args):run()
]]))
    assert.matches("^error: %[job.key%] .*s.lua:4: unknown key 'max_train_stepps'\n"
      .. "hint: did you mean 'max_train_steps'%?", said)
    assert.equal(2, code)
  end)
end)

describe('nnscaler test', function()
  it('counts, shows failures with their lines and fails', function()
    local said, code = shell.nnscaler('test ' .. file('a_spec.lua', [[
describe('sum', function()
  it('adds', function() assert.equal(3, 1 + 2) end)
  it('fails', function() assert.equal(4, 1 + 2) end)
  it('raises', function() local t; return t.x end)
  it('waits', function() pending 'no GPU' end)
end)
]]))
    assert.equal(1, code)
    assert.matches('FAIL  sum fails\n.*a_spec.lua:3: Expected objects to be equal', said)
    assert.matches("FAIL  sum raises\n.*a_spec.lua:4: attempt to index local 't'", said)
    assert.matches('SKIP  sum waits: no GPU\n', said)
    assert.matches('\n1 passed, 2 failed, 1 skipped\n$', said)
  end)

  it('is an error without specs', function()
    base.make_folder(folder .. '/empty')
    local said, code = shell.nnscaler(('test %s/empty'):format(folder))
    assert.matches('^error: %[test.find%] no spec below ', said)
    assert.equal(2, code)
    local _, rc = shell.nnscaler(('test %s --filter nothing_like_this'):format(
      file('a_spec.lua', "it('x', function() end)")))
    assert.equal(2, rc)
  end)
end)
