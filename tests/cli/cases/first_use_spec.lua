-- What people meet in their first hours.
local base = require 'nnscaler._C.base'
local cases = require 'tests.cli.support.cases'
local python = require 'tests.equivalence.pytorch.python'
local shell = require 'tests.cli.support.shell'

local case, remove = cases.new()
teardown(remove)
case.write('job.yaml', cases.yaml)
local here = shell.run('pwd'):match '[^\n]+'

describe('hook_user_state', function()
  local job = [[
local nnscaler = require 'nnscaler'
return {
  model = { type = 'mlp', args = { sizes = { 4, 8, 2 } } },
  dataset = nnscaler.data.random_samples { size = 64, width = 4, classes = 2 },
  micro_batch_size = 4, max_train_steps = 2, optimizer = 'sgd', threads = 1, gen_savedir = 'g',
  checkpoint = { save_dir = 'ck%d' }, comm = { backend = 'local' },
  hook = {
    on_save_checkpoint = function(_, checkpoint) %s end,
    after_load_checkpoint = function(_, checkpoint)
      print('patience', checkpoint.user.patience, checkpoint.state.user == checkpoint.user)
    end,
  },
}]]
  for i, put in ipairs { 'checkpoint.user.patience = 3', 'checkpoint.user = { patience = 3 }',
    'checkpoint.state.user.patience = 3', 'checkpoint.state.user = { patience = 3 }' } do
    it('comes back: ' .. put, function()
      case.write('user.lua', job:format(i, put))
      local said, code = case.run 'user.lua'
      assert.equal(0, code, said)
      for _, how in ipairs { '', ' -n 2 pas_policy=tp' } do
        said, code = case.run('user.lua max_train_steps=3 checkpoint.resume_from=last' .. how)
        assert.equal(0, code, said)
        assert.matches('patience\t3\ttrue', said)
      end
    end)
  end

  it('that is not plain data is refused by its place', function()
    case.write('user.lua', job:format(9, 'checkpoint.user.f = print'))
    local said, code = case.run 'user.lua'
    assert.equal(1, code)
    assert.matches('[checkpoint.state] state.user.f is a function', said, 1, true)
  end)
end)

describe('grad_accumulation_docs', function()
  it('the samples of a step are what the docs say', function()
    for _, how in ipairs { { 'one', '', 8 },
      { 'two', '-n 2 pas_policy=dp comm.backend=local', 16 } } do
      local said, code = case.run(('job.yaml grad_accumulation_steps=2 max_train_steps=1 '
        .. '--metrics %s.jsonl %s'):format(how[1], how[2]))
      assert.equal(0, code, said)
      assert.equal(how[3], cases.rows(('%s/%s.jsonl'):format(case.folder, how[1]))[1].tokens)
    end
    local page = base.file_read 'docs/configuration.md'
    assert.matches('micro_batch_size · grad_accumulation_steps · scale units if not given', page, 1,
      true)
  end)
end)

describe('weights_from_python', function()
  local gpt = here .. '/recipes/nanogpt.lua preset=tiny layers=2 width=16 block=8 heads=2 '
    .. 'max_val_steps=1 micro_batch_size=4 max_train_steps=1 threads=1 gen_savedir=g '
    .. 'comm.backend=local optimizer.args.lr=0 optimizer.args.weight_decay=0 '
    .. 'lr_scheduler.args.min_lr=0 checkpoint.every_n_train_steps=1'

  setup(function()
    if python.missing then return end
    local said, code = case.run(gpt .. ' checkpoint.save_dir=ours')
    assert.equal(0, code, said)
    case.write('make.py', [[
import json, os, torch
from safetensors.torch import load_file, save_file

torch.manual_seed(1)
ours = load_file("ours/last/model.safetensors")
weights = {name: torch.randn(t.shape) for name, t in ours.items()}
names = sorted(weights)
os.makedirs("shards")
save_file(weights, "one.safetensors")
save_file({n: t.to(torch.bfloat16) for n, t in weights.items()}, "short.safetensors")
shards = {"a-1-of-2.safetensors": names[::2], "a-2-of-2.safetensors": names[1::2]}
for file, some in shards.items():
    save_file({n: weights[n] for n in some}, "shards/" + file)
index = {"metadata": {}, "weight_map": {n: file for file, some in shards.items() for n in some}}
json.dump(index, open("shards/model.safetensors.index.json", "w"))
wrong = {"module." + n: t for n, t in weights.items() if "wte" in n}
wrong |= {n: t for n, t in weights.items() if "wte" not in n}
wrong["transformer.wpe.weight"] = torch.zeros(9, 16)
wrong["transformer.ln_f.weight"] = torch.zeros(16, dtype=torch.int64)
save_file(wrong, "wrong.safetensors")
]])
    said, code = shell.run(("cd '%s' && '%s' make.py"):format(case.folder, python.binary))
    assert.equal(0, code, said)
  end)

  local function load(arguments)
    shell.run(("rm -rf '%s/new'"):format(case.folder))
    local said, code = case.run(('%s checkpoint.save_dir=new checkpoint.save_type=merged '
      .. 'checkpoint.init_from=%s'):format(gpt, arguments))
    assert.equal(0, code, said)
    return require('nnscaler._C.checkpoint').read_safetensors(case.folder
      .. '/new/last/model.safetensors'), said
  end

  -- With a learning rate of 0 what is saved after a step is what was loaded.
  for _, how in ipairs { '', ' -n 2 pas_policy=dp', ' -n 2 pas_policy=tp', ' -n 2 pas_policy=pp',
    ' -n 2 pas_policy=fsdp', ' -n 2 pas_policy=megatron', ' eager=true' } do
    for _, source in ipairs { 'one.safetensors', 'shards' } do
      it(('bit for bit: %s%s'):format(source, how), function()
        if python.missing then return pending(python.missing) end
        local got = load(source .. how)
        local want = require('nnscaler._C.checkpoint').read_safetensors(case.folder
          .. '/one.safetensors')
        assert.same(want:names(), got:names())
        for _, name in ipairs(want:names()) do
          assert.equal(want:checksum(name), got:checksum(name), name)
        end
      end)
    end
  end

  it('of a shorter type, converted', function()
    if python.missing then return pending(python.missing) end
    local got, said = load 'short.safetensors'
    assert.matches('bfloat16 of the file became float32', said)
    local want = require('nnscaler._C.checkpoint').read_safetensors(case.folder
      .. '/short.safetensors')
    for _, name in ipairs(want:names()) do
      assert.is_true((want:read(name):to 'float32' - got:read(name)):abs():max():item() == 0, name)
    end
  end)

  it('of a checkpoint of ours', function()
    if python.missing then return pending(python.missing) end
    local got = load 'ours'
    local want = require('nnscaler._C.checkpoint').read_safetensors(case.folder
      .. '/ours/last/model.safetensors')
    for _, name in ipairs(want:names()) do
      assert.equal(want:checksum(name), got:checksum(name), name)
    end
  end)

  it('what differs is named, and nothing is changed', function()
    if python.missing then return pending(python.missing) end
    local said, code = case.run(gpt .. ' checkpoint.no_save=true checkpoint.init_from='
      .. 'wrong.safetensors')
    assert.equal(1, code)
    for _, words in ipairs { "'wrong.safetensors' does not fit the model; nothing was changed",
      "missing tensor: transformer.wte.weight float32[75, 16] (the file has "
        .. "'module.transformer.wte.weight')",
      'wrong shape: transformer.wpe.weight is float32[9, 16], the model has float32[8, 16]',
      'wrong dtype: transformer.ln_f.weight is int64[16], the model has float32[16]',
      'extra tensor: module.transformer.wte.weight float32[75, 16]' } do
      assert.matches(words, said, 1, true)
    end
  end)

  it('a file that is not there, or is none, is refused', function()
    case.write('text.safetensors', 'no tensors')
    base.make_folder(case.folder .. '/empty')
    for path, words in pairs { nowhere = "there is no file or folder 'nowhere'",
      ['text.safetensors'] = 'text.safetensors', empty = "'empty' has 0 safetensors files" } do
      local said, code = case.run('job.yaml checkpoint.init_from=' .. path)
      assert.is_true(code == 1 or code == 2)
      assert.matches(words, said, 1, true)
      assert.is_nil(said:find('json.exception', 1, true), said)
      assert.is_nil(said:find('bad argument', 1, true), said)
    end
  end)

  it('gives way to a checkpoint that resume_from finds', function()
    local job = 'job.yaml checkpoint.no_save=false checkpoint.save_dir=both '
    assert.equal(0, select(2, case.run(job .. 'max_train_steps=1')))
    local said, code = case.run(job .. 'max_train_steps=2 checkpoint.resume_from=last '
      .. 'checkpoint.init_from=nowhere')
    assert.equal(0, code, said)
    assert.matches('Resumed from', said)
  end)
end)

describe('the program as it is found', function()
  it('-n says when gloo joins the ranks for want of mpi', function()
    local lib = case.folder .. '/lib'
    shell.run(("mkdir -p '%s' && cp '%s' '%s'/libnnscaler_core.so '%s'/libnnscaler_torch.so '%s'")
      :format(lib, shell.binary, shell.binary:match '^(.*)/', shell.binary:match '^(.*)/', lib))
    local run = ("cd '%s' && timeout 120 lib/nnscaler run job.yaml max_train_steps=2 -n 2 %%s")
      :format(case.folder)
    local said, code = shell.run(run:format '')
    assert.equal(0, code, said)
    assert.equal(1, select(2, said:gsub('WARNING | nnscaler.comm [^\n]*the mpi back end cannot be '
      .. 'used, so ranks are joined by gloo: ', '')), said)
    assert.matches('2 ranks joined by gloo', said)
    said, code = shell.run(run:format 'comm.backend=mpi')
    assert.is_true(code ~= 0)
    assert.matches('[comm.mpi] cannot open the back end', said, 1, true)
    said = shell.run(("cd '%s' && lib/nnscaler doctor"):format(case.folder))
    assert.matches('warning: the back end mpi cannot be used', said)
    assert.is_nil(said:find('no problems found', 1, true))
  end)

  it('doctor finds no problems only where it shows none', function()
    local said, code = shell.nnscaler 'doctor'
    assert.equal(said:find('\nproblem: ', 1, true) and 1 or 0, code)
    local clean = not said:find('\nwarning: ', 1, true) and not said:find('\nproblem: ', 1, true)
    assert.equal(clean, said:find('no problems found', 1, true) ~= nil)
    for line in said:gmatch '[^\n]+' do
      if clean and line:find '^  no ' and not line:find 'this build has no nccl back end' then
        assert.matches('no GPU', line)
      end
    end
  end)

  it('explains -n as processes', function()
    local said = shell.nnscaler 'run --help'
    assert.matches('%-n,%-%-ranks N +ranks of this host that train together, each a process', said)
  end)
end)

describe('make', function()
  it('test closes with what was skipped, and why', function()
    local folder = case.folder .. '/clone'
    base.make_folder(folder .. '/tools')
    base.make_folder(folder .. '/build/tests/unit')
    shell.run(("cp tools/test '%s/tools/test'"):format(folder))
    -- A program that stands for each tier.
    local stub = '#!/bin/sh\ncase "$2" in\n'
      .. "*lua) echo 'SKIP  a: no GPU'; echo '3 passed, 0 failed, 1 skipped';;\n"
      .. "*cli) echo '2 passed, 1 failed'; exit 1;;\n"
      .. "*gpu) echo 'SKIP  b c: two GPUs are needed'; echo '0 passed, 0 failed, 2 skipped';;\n"
      .. '*) echo fine;;\nesac\n'
    for _, name in ipairs { 'build/nnscaler', 'tools/lint', 'build/tests/unit/unit_tests' } do
      base.file_write(folder .. '/' .. name, stub)
      shell.run(("chmod +x '%s/%s'"):format(folder, name))
    end
    local said, code = shell.run(("cd '%s' && tools/test quick"):format(folder))
    assert.equal(1, code)
    assert.matches('\nskipped, and why:\n  a: no GPU\n  b c: two GPUs are needed\n\n'
      .. '8 passed, 1 failed, 3 skipped\n$', said)
  end)

  it('run builds every back end that there is', function()
    local said = shell.run 'make -n run'
    assert.matches('ninja %-C build program', said)
    local text = base.file_read 'meson.build'
    assert.matches("alias_target%('program', nnscaler, program%)", text)
    for _, library in ipairs { 'mpi', 'nccl' } do
      assert.matches(("program %%+= library%%('nnscaler_%s'"):format(library), text)
    end
  end)

  it('bench needs nothing outside of the clone', function()
    local said, code = shell.run 'git grep -nE "NNSCALER_SHARED|shared/" -- tests/bench'
    assert.equal(1, code, said)
    if python.missing then return pending(python.missing) end
    said, code = shell.run(("OMP_NUM_THREADS=1 '%s' tests/bench/torch/train.py --mode eager "
      .. '--preset tiny --steps 2'):format(python.binary))
    assert.equal(0, code, said)
    local row = base.json_decode(said:match '{.*}')
    assert.is_true(row.median_s > 0 and row.cpu_s > 0 and row.peak_rss_mib > 0)
  end)
end)
