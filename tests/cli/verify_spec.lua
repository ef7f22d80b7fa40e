--- `nnscaler verify`: every policy equals one device; a policy that breaks the model is found out.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local gpt = 'recipes/nanogpt.lua preset=tiny layers=1 width=16 heads=2 block=8 dropout=0.1'

local function verify(arguments) return shell.nnscaler('verify ' .. arguments) end

-- Writes a recipe, in Lua; returns its path.
local function recipe(name, text)
  local path = folder .. '/' .. name
  base.file_write(path, text)
  return path
end

describe('nnscaler verify', function()
  for _, case in ipairs {
    { 'dp', 2 }, { 'tp', 2 }, { 'pp', 2 }, { 'data', 2 }, { 'fsdp', 2 }, { 'megatron', 2 },
    { 'hybrid', 4 },
  } do
    it('finds the policy ' .. case[1] .. ' equal to one device', function()
      local said, code = verify(('%s pas_policy=%s compute_config.runtime_ngpus=%d '
        .. 'global_batch_size=8'):format(gpt, case[1], case[2]))
      assert.equal(0, code, said)
      assert.matches('nanogpt under ' .. case[1] .. ': ' .. case[2] .. ' rank', said)
      assert.matches('norm before clipping +3 ', said)
      assert.matches('gradients of step 1 +9 ', said)
      assert.matches('\ntransformer%.h%.0%.mlp%.c_fc%.weight +%S+ +%d', said)
      assert.matches('\nThe plan equals one device%.\n', said)
    end)
  end

  it('knows every policy of ours', function()
    assert.equal(9, #require('nnscaler.policies').builtin)
  end)

  it('finds LLaMA equal on four ranks', function()
    local said, code = verify('recipes/llama3.lua layers=1 sequence_length=8 pas_policy=tp '
      .. 'compute_config.plan_ngpus=2 compute_config.runtime_ngpus=4 --steps 1')
    assert.equal(0, code, said)
    assert.matches('4 rank%(s%), 2 device%(s%) a plan, 2 scale unit%(s%); 1 step%(s%)', said)
  end)

  for _, model in ipairs {
    'mixtral.lua layers=1 block=8 width=16 experts=4', 'deepseek.lua',
    'llama3.lua layers=1 sequence_length=16 loss_chunk=8 pas_config.context_parallel=2',
  } do
    it('finds megatron equal on ' .. model:match '^%a+', function()
      local said, code = verify(('recipes/%s pas_policy=megatron compute_config.plan_ngpus=2 '
        .. 'compute_config.runtime_ngpus=2 micro_batch_size=2 --steps 1'):format(model))
      assert.equal(0, code, said)
      assert.matches('\nThe plan equals one device%.\n', said)
    end)
  end

  it('names what differs', function()
    -- A model that is another one while it is traced.
    local path = recipe('wrong.lua', [[
local nnscaler, nn = require 'nnscaler', require 'nnscaler.nn'
local Model = nn.class 'Model'
function Model:init() self.fc = nn.Linear(4, 4) end
function Model:forward(s)
  return self.fc(s.x):square():mean() * (s.x.kind == 'traced' and 2 or 1)
end
return { model = function() return Model() end,
  dataset = nnscaler.data.random_samples { size = 64, width = 4 }, micro_batch_size = 4,
  max_train_steps = 3, optimizer = { type = 'sgd', args = { lr = 0.1 } } }
]])
    local said, code = verify(path)
    assert.equal(1, code, said)
    assert.matches('\ngradients of step 1 +2 +1 +1e%-11 +fc%.weight, rank 0\n', said)
    assert.matches('\nfc%.bias +1 +0\n', said)
    assert.matches('\n10 of 15 comparisons differ%.\n', said)
  end)

  it('refuses what it cannot compare', function()
    local said, code = verify(gpt .. ' eager=true')
    assert.matches('%[verify%.eager%] eager=true is what the plan is compared with', said)
    assert.equal(2, code)
    said, code = verify(gpt .. ' --steps 0')
    assert.matches('%[verify%.steps%] %-%-steps is 0; expected 1 or more', said)
    assert.equal(2, code)
    said, code = verify ''
    assert.matches('%[cli%.verify%] JOB is missing', said)
    assert.equal(2, code)
  end)
end)

describe('nnscaler verify --op', function()
  it('checks an operator of the table', function()
    local said, code = verify '--op aten::softmax'
    assert.equal(0, code, said)
    assert.matches('aten::softmax\n  a b%^ %-> a b%^\n', said)
    assert.matches('have the types of the table; %d+ ways of splitting give the whole%.', said)
  end)

  it('checks one that a module registers', function()
    local said, code = verify 'nnscaler.nn --op nnscaler::fused_linear'
    assert.equal(0, code, said)
    assert.matches('nnscaler::fused_linear\n  [^\n]* %-> ', said)
    assert.matches('derivative of autograd; %d ways of splitting give the whole%.', said)
  end)

  it('finds what is wrong in one that a recipe registers', function()
    local path = recipe('mine.lua', [[
local nnscaler, T = require 'nnscaler', require 'nnscaler.tensor'
nnscaler.register_op('mine::centered', {
  annotation = 'a b -> a b',
  body = function(x) return x - x:mean(-1, true) end,
  inputs = function(g) return { T.randn({ 2, 4 }, { generator = g, dtype = 'float64' }) } end,
})
]])
    local said, code = verify(path .. ' --op mine::centered')
    assert.equal(1, code, said)
    assert.matches('split of input 0 dim 1 into 2: .- differs by', said)
    assert.matches('\n1 problem%(s%)%.\n', said)
  end)

  it('refuses what it does not know', function()
    local said, code = verify '--op mine::none'
    assert.matches("%[verify%.op%] no operator 'mine::none' in the table", said)
    assert.equal(2, code)
    said, code = verify 'nnscaler.nn --op mine::none'
    assert.matches("%[verify%.op%] 'mine::none' is not registered", said)
    assert.equal(2, code)
    said, code = verify 'nnscaler.nn layers=2 --op nnscaler::fused_linear'
    assert.matches("%[verify%.op%] 'layers=2' beside %-%-op", said)
    assert.equal(2, code)
  end)
end)
