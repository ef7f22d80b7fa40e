--- A second run from written files, as users start it: no policy, lowering or writing on any rank,
--- the same losses; and the line that says why more was done.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local function train(gen, more)
  local said, code = shell.nnscaler(('run recipes/nanogpt.lua preset=tiny threads=1 '
    .. 'max_val_steps=1 -n 2 comm.backend=local stop_after_steps=2 gen_savedir=%s/%s '
    .. 'checkpoint.no_save=true '
    .. '--log-level debug %s'):format(folder, gen, more))
  assert.equal(0, code, said)
  return said
end

-- What rank 0 says of the training programs of all ranks, and the losses that a run logs.
local function counts(said)
  local list = {}
  for line in said:gmatch 'Program of training: ([^\n]*)' do list[#list + 1] = line end
  return list
end
local function losses(said)
  local list = {}
  for loss in said:gmatch 'loss=([%d.e+-]+)' do list[#list + 1] = loss end
  assert.is_true(#list > 0)
  return list
end

describe('a second run from written files', function()
  for _, case in ipairs {
    { 'dp', 'pas_policy=dp', 1 }, { 'fsdp', 'pas_policy=fsdp', 1 },
    { 'megatron', 'pas_policy=megatron', 1 },
    { 'pp', 'pas_policy=pp grad_accumulation_steps=2', 2 },
  } do
    it('runs no policy, no lowering and no writing under ' .. case[1], function()
      local first = train(case[1], case[2])
      assert.matches(('1 policies, %d lowerings, 6 files written'):format(case[3]),
        counts(first)[1])
      local second = train(case[1], case[2])
      local done = '1 traces, 0 policies, 0 lowerings, 0 files written so far'
      assert.same({ done }, counts(second))
      assert.same(losses(first), losses(second))
    end)
  end

  it('says which setting made it do more', function()
    local said = train('dp', 'pas_policy=fsdp')
    assert.matches('The policy runs: settings changed: pas_policy %(dp in the file, fsdp now%)',
      said)
    assert.matches('gencode0.lua: lowered anew: settings changed: pas_policy', said)
  end)

  it('plans anew where a file that the policy reads has changed', function()
    local path = folder .. '/constraints.yaml'
    local function start(text)
      base.file_write(path, text, 'test')
      return train('constrained', 'pas_policy=autodist pas_config.hardware=h100 '
        .. 'pas_config.partition_constraints_path=' .. path)
    end
    start '- name: linear\n'
    assert.matches('1 traces, 0 policies, 0 lowerings', counts(start '- name: linear\n')[1])
    local said = start '- name: embedding\n'
    assert.matches('The policy runs: policy changed', said)
  end)
end)
