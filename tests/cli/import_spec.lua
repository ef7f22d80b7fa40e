--- `nnscaler import`: what it says of an exported program, and what it refuses. The files are made
--- by tests/equivalence/pytorch/damaged.py.
local base = require 'nnscaler._C.base'
local python = require 'tests.equivalence.pytorch.python'
local shell = require 'tests.cli.support.shell'

-- file, exit code, what is said
local refused = {
  { 'missing', 2, "%[import%.file%] cannot read '.-missing%.pt2': no such file" },
  { 'truncated', 1, 'is no archive of PyTorch, or cut short' },
  { 'empty', 1, 'is no archive of PyTorch, or cut short' },
  { 'text', 1, 'is no archive of PyTorch, or cut short' },
  { 'other_kind', 1, 'is an archive of another kind: it holds no exported program' },
  { 'old', 1, 'was exported by an old PyTorch, which pickles weights' },
  { 'version', 1, "is an archive of version '7'; expected 0" },
  { 'big_endian', 1, 'holds weights in big%-endian order; expected little' },
  { 'no_model', 1, "has no record 'models/model%.json'" },
  { 'no_json', 1, 'is damaged: models/model%.json is no JSON' },
  { 'deep', 1, 'is damaged: models/model%.json is no JSON: nested more than 400 deep' },
  { 'bomb', 1, "is damaged: record 'models/model%.json' is said to have 67108864 bytes, the file" },
  { 'schema', 1, 'has an exported program of schema version 99%.0; expected 8%.x' },
  { 'no_record', 1, "has no record 'data/weights/weight_0', or it is damaged" },
  { 'short_record', 1, "holds 'fc%.weight' as float32%[4, 3%] at 0 with strides %[3, 1%], of which "
    .. "record 'data/weights/weight_0' has 11 elements" },
  { 'no_weights', 1, "holds no values of 'fc%.weight'" },
  { 'pickled', 1, "holds 'fc%.weight' as a pickle, which is never opened" },
  { 'huge', 1, "holds 'fc%.weight' as float32%[1099511627776, 1099511627776%]" },
  { 'negative', 1, "holds 'fc%.weight' with a size or stride of %-4" },
  { 'offset', 1, "holds 'fc%.weight' as float32%[4, 3%] at 4611686018427387904" },
  { 'strides', 1, "holds 'fc%.weight' as float32%[4, 3%] at 0 with strides %[4611686018427387904" },
  { 'spread', 1, "holds 'fc%.weight' as float32%[1125899906842624, 3%]" },
  { 'dtype', 1, "holds 'fc%.weight' of dtype number 99" },
  { 'rank', 1, "holds 'fc%.weight' with sizes and strides that differ" },
  { 'unknown_value', 1, "has an argument 'nowhere' that nothing before makes" },
  { 'twice', 1, "has a second value 'linear'" },
  { 'kind', 1, 'is damaged, or of a newer PyTorch' },
  { 'inputs', 1, 'is damaged: signature and graph have different inputs' },
  { 'outputs', 1, 'is damaged: signature and graph have different outputs' },
  { 'joint', 1, 'the program holds its own backward; expected forward alone' },
  { 'function', 1, 'os%.system is no operator, nor a function of sizes that is known; '
    .. '.-damaged%.py' },
  { 'higher', 1, 'torch%.ops%.higher_order%.scan is a higher%-order operator that cannot be '
    .. 'imported; at damaged%.py:%d+: `return' },
  { 'branch', 1, 'torch%.ops%.higher_order%.cond takes a branch that depends on the data of a '
    .. 'tensor; at damaged%.py:%d+: `return ' },
  { 'loop', 1, 'torch%.ops%.higher_order%.while_loop is a higher%-order operator that cannot be '
    .. 'imported; at damaged%.py:%d+: `return ' },
  { 'autocast', 1, 'turns autocast on, which a graph cannot hold; at damaged%.py' },
}

-- What is found when the program runs: file, what is said.
local at_run = {
  { 'operator', "there is no operator 'mylib::twice'; .-damaged%.py:%d+" },
  { 'argument', "is not a tensor; .-damaged%.py:%d+" },
  { 'writes', "writes to input '.-' of the model; at damaged%.py:%d+: `x%.mul_%(2%)`" },
  { 'parameter', "writes to parameter 'fc%.weight'; at damaged%.py:%d+: `" },
  { 'pieces', "'fc%.weight' and 'part%.weight' share memory in different shapes" },
  { 'counts', 'depends on data; at damaged%.py:%d+: `return x%[x > 0%]%.sum%(%)`' },
}

describe('nnscaler import', function()
  local folder
  setup(function() folder = python.written_by 'damaged.py' end)
  teardown(function() python.remove() end)

  it('says what a program holds', function()
    if not folder then return pending(python.missing) end
    local said, code = shell.nnscaler(("import '%s/whole.pt2'"):format(folder))
    assert.equal(0, code, said)
    assert.matches('whole%.pt2: Model, exported by PyTorch 2%.', said)
    assert.matches('\n  arguments   x float32%[2, 3%]\n  results     1\n', said)
    assert.matches('\n  parameters  2 tensors, 16 elements, 64 B\n', said)
    assert.matches('\n  buffers     1 tensors, 4 elements, 16 B\n', said)
    assert.matches('\n  calls       3 of 3 operators\n', said)
    said, code = shell.nnscaler(("import '%s/whole.pt2' --json"):format(folder))
    assert.equal(0, code, said)
    local report = base.json_decode(said)
    assert.same({ 'aten::linear', 'aten::mul.Tensor', 'aten::sum' },
      { report.operators[1].op, report.operators[2].op, report.operators[3].op })
  end)

  it('names operators that are not here, and how to bring them', function()
    if not folder then return pending(python.missing) end
    local said, code = shell.nnscaler(("import '%s/operator.pt2'"):format(folder))
    assert.equal(0, code, said)
    assert.matches('Operators that are not here.-\n  mylib::twice, 1×, first at damaged%.py', said)
    assert.matches("nnscaler%.register_op%('mylib::twice', { library = 'PATH%.so' }%)", said)
  end)

  it('goes the way of docs/import.md, to PyTorch and back', function()
    if not folder then return pending(python.missing) end
    local page = base.file_read 'docs/import.md'
    for name, text in page:gmatch '```%l+ file=([%w._]+)\n(.-)```' do
      base.file_write(('%s/%s'):format(folder, name), text)
    end
    local here = shell.run('pwd'):match '^[^\n]+'
    local function step(command)
      local said, code = shell.run(("cd '%s' && export OMP_NUM_THREADS=1 && %s"):format(folder,
        command))
      assert.equal(0, code, said)
      return said
    end
    local commands = {}
    for line in page:match '\n    (python examples.-)\n\n':gmatch '[^\n]+' do
      commands[#commands + 1] = line:gsub('^%s+', ''):gsub('^python', python.binary)
        :gsub('^nnscaler', shell.binary):gsub('examples/', here .. '/%0')
    end
    assert.equal(5, #commands)
    step(commands[1])
    local shown = page:match '\n    (model%.pt2: .-)\n\n%S':gsub('\n    ', '\n')
    local function without_version(text) return (text:gsub('PyTorch %S+', 'PyTorch', 1)) end
    assert.equal(without_version(shown), without_version(step(commands[2]):gsub('%s+$', '')))
    step(commands[3] .. ' max_train_steps=20')
    step(commands[4])
    local apart = step(commands[5]):match '1600 logits, at most (%S+) apart'
    assert.is_true(tonumber(apart) <= 1e-5)
    base.file_write(folder .. '/before.py', [[
import model, torch, safetensors.torch
net, (x, y) = model.make()
held = safetensors.torch.load_file('checkpoints/last/model.safetensors')
print('trained', all(not v.equal(held[k]) for k, v in net.state_dict().items() if v.dim() == 2))
]])
    assert.matches('trained True', step(python.binary .. ' before.py'))
    base.file_write(folder .. '/job.yaml', [[
model: { type: nnscaler.import, args: { path: model.pt2 } }
dataset: { type: nnscaler.data.random_tokens, args: { vocab: 50, block: 16, size: 64 } }
micro_batch_size: 8
max_train_steps: 1
optimizer: { type: sgd, args: { lr: 0.1 } }
checkpoint: { no_save: true }
]])
    step(("'%s' run job.yaml"):format(shell.binary))
    assert.matches('The plan equals one device%.', step(("'%s' verify train.lua pas_policy=tp "
      .. 'compute_config.plan_ngpus=2 --steps 1'):format(shell.binary)))
  end)

  for _, case in ipairs(refused) do
    it('refuses the file ' .. case[1], function()
      if not folder then return pending(python.missing) end
      local said, code = shell.nnscaler(("import '%s/%s.pt2'"):format(folder, case[1]))
      assert.equal(case[2], code, said)
      assert.matches(case[3], said)
    end)
  end

  it('reads or refuses programs with random damage', function()
    if not folder then return pending(python.missing) end
    local trace = require 'nnscaler._C.trace'
    local refusals = 0
    for i = 0, 299 do
      local ok, err = pcall(function()
        local program = trace.open_program(('%s/random-%d.pt2'):format(folder, i))
        program:about()
        program:operators()
      end)
      if not ok then
        refusals = refusals + 1
        assert.is_true(err.kind == 'state' or err.kind == 'model', ('random-%d: %s'):format(i,
          tostring(err.message or err)))
      end
    end
    assert.is_true(refusals > 150 and refusals < 300)
  end)

  for _, case in ipairs(at_run) do
    it('refuses to run the file ' .. case[1], function()
      if not folder then return pending(python.missing) end
      local recipe = ('%s/%s.lua'):format(folder, case[1])
      base.file_write(recipe, ([[
return { model = function() return require 'nnscaler.import' '%s/%s.pt2' end,
  dataset = require('nnscaler').data.random_samples { size = 8, width = 3 },
  forward_args = function(s) return s.x end,
  optimizer = { type = 'sgd', args = { lr = 0.1 } },
  micro_batch_size = 2, max_train_steps = 1, checkpoint = { no_save = true } }
]]):format(folder, case[1]))
      local said, code = shell.nnscaler("run '" .. recipe .. "'")
      assert.equal(1, code, said)
      assert.matches(case[2], said)
    end)
  end
end)
