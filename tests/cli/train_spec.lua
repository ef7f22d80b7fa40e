-- Training through the command line: twins of recipes, what is logged, signals, resuming after a
-- kill, sampling.
local base = require 'nnscaler._C.base'

local binary = os.getenv 'NNSCALER_BIN' or 'build/nnscaler'
local folder

-- Runs a shell command; returns its output and exit code.
local function shell(command)
  local pipe = assert(io.popen(('{ %s ; } 2>&1; echo "rc=$?"'):format(command)))
  local output = pipe:read '*a'
  pipe:close()
  local body, code = output:match '^(.*)rc=(%d+)\n$'
  return body, tonumber(code)
end

local function nnscaler(arguments, prefix)
  return shell(('%s %s %s'):format(prefix or '', binary, arguments))
end

local function read(path) return base.file_read(path) end

-- Metrics without times and memory.
local function metrics(path)
  local list = {}
  for line in read(path):gmatch '[^\n]+' do
    local all = base.json_decode(line)
    list[#list + 1] = { all.step, all.epoch, all.train_loss, all.gnorm, all.lr, all.tokens,
      all.val_loss }
  end
  return list
end

-- Lines of a file that belong to steps from..to.
local function lines_of_steps(path, from, to)
  local list = {}
  for line in read(path):gmatch '[^\n]+' do
    local step = tonumber(line:match '^%d+')
    if step >= from and step <= to then list[#list + 1] = line end
  end
  return list
end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  base.make_folder(folder)
end)
after_each(function() shell(("rm -rf '%s'"):format(folder)) end)

describe('quickstart', function()
  it('says what the first users of such trainers saw', function()
    local said, code = nnscaler(('run recipes/quickstart.lua eager=true threads=1 '
      .. 'checkpoint.save_dir=%s/checkpoints'):format(folder))
    assert.equal(0, code)
    local lines = {}
    for line in said:gmatch '[^\n]+' do
      lines[#lines + 1] = line:match '^%d+%-%d+%-%d+ %d+:%d+:%d+ | INFO | nnscaler.trainer | (.*)$'
    end
    while lines[1] ~= 'Training...' do table.remove(lines, 1) end
    local loss = lines[2]:match '^Epoch 0: 010/100 train_loss=(%d%.%d%d%d), lr=0.001, gnorm='
    assert.same({
      'Saving checkpoint after 10 steps with loss=' .. loss .. '.',
      'Saving checkpoint to ' .. folder .. '/checkpoints/0000-0010',
      'Saving checkpoint as the last checkpoint.',
      'Best loss updated: inf -> ' .. loss,
      'Saving checkpoint as the best checkpoint.',
      'Reached max train steps(10): Training is done.',
    }, { unpack(lines, 3, 8) })
  end)

  it('has a YAML twin', function()
    for _, job in ipairs { 'recipes/quickstart.lua', 'configs/quickstart.yaml' } do
      local said, code = nnscaler(('run %s eager=true threads=1 checkpoint.no_save=true '
        .. '--metrics %s/%s.jsonl'):format(job, folder, job:match '%w+$'))
      assert.equal(0, code, said)
    end
    local lua = metrics(folder .. '/lua.jsonl')
    assert.equal(10, #lua)
    assert.same(lua, metrics(folder .. '/yaml.jsonl'))
  end)
end)

describe('progress', function()
  local job = 'run tests/cli/jobs/gpt.lua eager=true threads=1 checkpoint.no_save=true '

  it('is a bar on a terminal', function()
    local said = shell(("script -qec '%s %s enable_progress_bar=true' /dev/null"):format(binary,
      job))
    assert.matches('\r\27%[KEpoch 0:   0%% %D+ 1/%d+ %d+%.%d/s %d:%d+ left, train_loss=', said)
    assert.matches('Epoch 0: 00020/%d+ train_loss=', said)
  end)

  it('is a line each n steps elsewhere', function()
    local said = nnscaler(job .. 'enable_progress_bar=true log_progress_every_n_train_steps=8')
    local steps = {}
    for step in said:gmatch 'Epoch 0: (%d+)/%d+ train_loss=' do steps[#steps + 1] = step end
    assert.same({ '00008', '00016', '00020' }, steps)
    assert.is_nil(said:find '\r')
  end)
end)

describe('nanogpt', function()
  it('has a YAML twin', function()
    local common = ('eager=true threads=1 stop_after_steps=3 max_val_steps=1 '
      .. 'checkpoint.save_dir=%s/ck'):format(folder)
    for _, job in ipairs { 'recipes/nanogpt.lua', 'configs/nanogpt.yaml' } do
      local said, code = nnscaler(('run %s %s --metrics %s/%s.jsonl'):format(job, common, folder,
        job:match '%w+$'))
      assert.equal(0, code, said)
    end
    local lua = metrics(folder .. '/lua.jsonl')
    assert.equal(3, #lua)
    assert.equal(768, lua[1][6]) -- tokens of a step
    assert.same(lua, metrics(folder .. '/yaml.jsonl'))
  end)
end)

describe('a run that was killed', function()
  local function run(name, arguments, prefix)
    return nnscaler(('run tests/cli/jobs/gpt.lua by_index=true ids=%s/%s.ids '
      .. 'gen_savedir=%s/gen checkpoint.save_dir=%s/%s --metrics %s/%s.jsonl %s'):format(folder,
      name, folder, folder, name, folder, name, arguments), prefix)
  end

  local function check(set, prefix)
    local said, code = run('whole', set, prefix)
    assert.equal(0, code, said)
    said, code = run('part', set .. ' signal=9 at=13', prefix)
    assert.equal(137, code, said)
    said, code = run('part', set .. ' checkpoint.resume_from=last', prefix)
    assert.equal(0, code, said)
    local whole = metrics(folder .. '/whole.jsonl')
    assert.equal(20, #whole)
    assert.same(whole, metrics(folder .. '/part.jsonl'))
    for _, file in ipairs { 'model', 'optimizer' } do
      local path = ('/0000-0020/%s.safetensors'):format(file)
      assert.is_true(read(folder .. '/whole' .. path) == read(folder .. '/part' .. path),
        file .. ' differs')
    end
    -- Steps 11, 12 and 13 were made twice, with the same samples.
    local ids = lines_of_steps(folder .. '/whole.ids', 1, 20)
    local again = lines_of_steps(folder .. '/part.ids', 1, 20)
    assert.equal(40, #ids)
    for i = 1, 6 do -- two micro-batches a step
      assert.equal(again[20 + i], again[26 + i])
    end
    for _ = 1, 6 do table.remove(again, 21) end
    assert.same(ids, again)
  end

  it('continues bit for bit, on one thread', function() check 'threads=1' end)
  it('continues bit for bit, on two threads', function() check 'threads=2' end)
  it('continues bit for bit, without address randomisation', function()
    check('threads=1', 'setarch -R')
  end)
  it('continues bit for bit, on two threads without address randomisation', function()
    check('threads=2', 'setarch -R')
  end)
  it('continues bit for bit, eagerly', function() check 'threads=2 eager=true' end)

  it('is the same as one with other addresses', function()
    for _, prefix in ipairs { '', 'setarch -R' } do
      local name = prefix == '' and 'with' or 'without'
      local said, code = run(name, 'threads=2', prefix)
      assert.equal(0, code, said)
    end
    assert.same(metrics(folder .. '/with.jsonl'), metrics(folder .. '/without.jsonl'))
    local path = '/0000-0020/model.safetensors'
    assert.is_true(read(folder .. '/with' .. path) == read(folder .. '/without' .. path))
  end)
end)

describe('signals', function()
  local function run(arguments)
    return nnscaler(('run tests/cli/jobs/gpt.lua eager=true threads=1 '
      .. 'checkpoint.save_dir=%s/ck %s'):format(folder, arguments))
  end

  it('save at the end of the step and leave with 128 + signal', function()
    local said, code = run 'signal=15 at=3'
    assert.equal(143, code, said)
    assert.matches('Received SIGTERM: stopped after 3 steps.', said)
    assert.equal('file', base.file_exists(folder .. '/ck/last/manifest.json'))
    assert.equal('folder', base.file_exists(folder .. '/ck/0000-0003'))
    said, code = run 'signal=2 at=5 checkpoint.resume_from=last'
    assert.equal(130, code, said)
    assert.matches('Resumed from .*/0000%-0003 after 3 steps', said)
  end)

  it('do not wait for an evaluation', function()
    local said, code = run 'signal=15 at=6 validating=true'
    assert.equal(143, code, said)
    assert.matches('The evaluation after 6 steps was interrupted', said)
    assert.equal('folder', base.file_exists(folder .. '/ck/0000-0006'))
  end)

  it('leave at once the second time', function()
    local said, code = run 'signal=2 at=3 times=2'
    assert.equal(130, code, said)
    assert.same({}, base.list_folder(folder .. '/ck')) -- nothing was saved
  end)
end)

describe('generate', function()
  it('samples the same text for the same seed, from the job of the checkpoint', function()
    local job = folder .. '/job.lua'
    base.file_write(job, read 'tests/cli/jobs/gpt.lua')
    local said, code = nnscaler(('run %s eager=true threads=1 max_train_steps=2 '
      .. 'checkpoint.save_dir=%s/ck'):format(job, folder))
    assert.equal(0, code, said)
    local function generate(arguments)
      return nnscaler(('generate %s/ck/last --prompt ROMEO: %s'):format(folder, arguments))
    end
    local first = generate '--tokens 40 --seed 1'
    assert.equal(1 + #'ROMEO:' + 40, #first)
    assert.matches('^ROMEO:', first)
    assert.equal(first, (generate '--tokens 40 --seed 1'))
    assert.not_equal(first, (generate '--tokens 40 --seed 2'))
    assert.equal((generate '--tokens 20 --temperature 0'),
      (generate '--tokens 20 --top-k 1 --seed 9'))
    said, code = generate '--temperature -1'
    assert.equal(2, code)
    assert.matches('temperature %-1; expected 0 or more', said)
    said, code = nnscaler(("generate %s/ck/last --prompt '€'"):format(folder))
    assert.equal(1, code)
    assert.matches('€', said)
    os.remove(job)
    said, code = generate ''
    assert.equal(1, code)
    assert.matches('was written by the job \'[^\']*/job.lua\', which is not there', said)
  end)
end)

describe('mistakes in a job', function()
  it('are named', function()
    local function run(changes)
      return nnscaler(('run recipes/quickstart.lua eager=true checkpoint.no_save=true %s')
        :format(changes))
    end
    local said, code = run 'max_train_steps!'
    assert.equal(2, code)
    assert.matches('max_train_steps', said)
    said, code = run 'global_batch_size=5 micro_batch_size=2'
    assert.equal(2, code)
    assert.matches('global_batch_size 5 is not a multiple of micro_batch_size 2', said)
    said, code = run 'optimizer.args.learning_rate=1'
    assert.equal(2, code)
    assert.matches("unknown key 'learning_rate'; expected amsgrad, betas, eps, fused, lr", said)
    said, code = run 'optimizer.type=adamx'
    assert.equal(2, code)
    assert.matches("nothing is named 'adamx'", said)
    said, code = run 'lr_scheduler.type=cosin'
    assert.equal(2, code)
    assert.matches("nothing is named 'cosin'", said)
  end)
end)
