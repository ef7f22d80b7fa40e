--- `model.parallel_modules`: parts of a model made parallel by a job. Losses, norms and checkpoints
--- are those of the whole model on one device.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local runs = training.new 'tests/cli/jobs/parts.lua'

local function run(name, more)
  return shell.nnscaler(runs.arguments(name, 'comm.backend=local ' .. more))
end

describe('parts of a model', function()
  teardown(runs.remove)
  local said, code = run('eager', 'eager=true')
  assert.equal(0, code, said)
  local want = runs.rows 'eager'

  for _, case in ipairs {
    { 'one rank', '' }, { 'data parallel', '-n 2 policy=dp' },
    { 'tensor parallel', '-n 2 compute_config.plan_ngpus=2' },
    { 'both', '-n 4 compute_config.plan_ngpus=2' },
    { 'sharded weights, units with unequal numbers of micro-batches', '-n 4 policy=fsdp' },
    { 'sharded optimizer state', '-n 2 policy=dp compute_config.use_zero=1' },
  } do
    it('train as the whole does: ' .. case[1], function()
      local name = case[1]:gsub('%W', '')
      said, code = run(name, case[2])
      assert.equal(0, code, said)
      training.near(want, runs.rows(name))
      assert.equal('file', base.file_exists(('%s/%s.gen/Block/gencode0.lua'):format(runs.folder,
        name)))
    end)
  end

  it('go on from checkpoints of other ways to run, and give theirs', function()
    for _, way in ipairs { '-n 2 compute_config.plan_ngpus=2 stop_after_steps=4',
      'eager=true stop_after_steps=7', '-n 2 policy=dp' } do
      said, code = run('cross', way .. ' checkpoint.resume_from=last')
      assert.equal(0, code, said)
    end
    training.near(want, runs.rows 'cross')
  end)

  it('start with weights from a file, each rank with its parts', function()
    said, code = run('source', 'eager=true stop_after_steps=3')
    assert.equal(0, code, said)
    local source = runs.folder .. '/source/last'
    local function first(name, more)
      said, code = run(name, 'stop_after_steps=1 ' .. more)
      assert.equal(0, code, said)
      return runs.rows(name)
    end
    local tp = '-n 2 compute_config.plan_ngpus=2 '
    local whole = first('whole', 'eager=true checkpoint.init_from=' .. source)
    training.near(whole, first('parts', tp .. 'checkpoint.init_from=' .. source))
    -- Both modules start with the weights of the first.
    local key = 'model.parallel_modules.0.tracing_from_weights'
    local from = ('%s=%s %s_prefix=blocks.0 '):format(key, source, key)
    local one = first('some', from)
    assert.is_true(math.abs(one[1].train_loss - whole[1].train_loss) > 1e-6)
    assert.is_true(math.abs(one[1].train_loss - want[1].train_loss) > 1e-6)
    training.near(one, first('some.tp', tp .. from))
    said, code = run('none', ('%s=%s'):format(key, source))
    assert.equal(1, code, said)
    assert.matches('%[model.parallel_modules%[1%].tracing_from_weights%]', said)
    assert.matches('missing tensor: up.weight', said)
  end)

  it('are written by compile, or by run_mode=compile', function()
    for name, command in ipairs { 'compile', 'run' } do
      local folder = ('%s/compiled%d'):format(runs.folder, name)
      said, code = shell.nnscaler(('%s tests/cli/jobs/parts.lua run_mode=compile gen_savedir=%s '
        .. 'compute_config.plan_ngpus=2 compute_config.runtime_ngpus=4'):format(command, folder))
      assert.equal(0, code, said)
      for rank = 0, 3 do
        assert.equal('file', base.file_exists(('%s/Block/gencode%d.lua'):format(folder, rank)))
      end
    end
    assert.is_falsy(base.file_exists(runs.folder .. '/compiled1/Net'))
  end)

  it('say what cannot be', function()
    local function refused(text, more)
      said, code = run('refused', more)
      assert.equal(2, code, said)
      assert.matches(text, said)
    end
    refused("%[model.parallel_modules%[1%].args%] the model makes a 'Block' with other arguments",
      'wide=true')
    refused("%[model.parallel_modules%[1%].type%] the model makes no 'Block'", 'none=true')
    refused('compute_config.use_end2end is true; expected false',
      'model.parallel_modules.0.compute_config.use_end2end=true')
    refused("unknown key 'model.parallel_modules.polic'", 'model.parallel_modules.0.polic=tp')
    refused('expected precision none, fp64, fp32 or bf16 beside model.parallel_modules',
      'precision=bf16-mixed')
    for _, command in ipairs { 'verify', 'plan' } do
      local job = ' tests/cli/jobs/parts.lua compute_config.plan_ngpus=2'
      said, code = shell.nnscaler(command .. job)
      assert.equal(2, code, said)
      assert.matches('the job has model.parallel_modules; expected a model that is one program',
        said)
      said, code = shell.nnscaler(command .. job .. ' model.parallel_modules! pas_policy=tp')
      assert.equal(0, code, said)
    end
    refused("forward_args_gen_fn%] a nil; expected function%(job%) that returns arguments of "
      .. 'Block.forward', 'model.parallel_modules.0.forward_args_gen_fn!')
    refused("nothing is named 'blok'", 'model.parallel_modules.0.type=blok')
  end)
end)
