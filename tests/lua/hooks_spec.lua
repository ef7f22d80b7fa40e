--- Functions that a policy has run around operators.
local F = require 'nnscaler.functional'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local hooks = require 'tests.lua.support.hooks'
local log = require 'nnscaler.log'
local message = require 'tests.lua.support.message'
local nn = require 'nnscaler.nn'
local plans = require 'nnscaler._C.plan'

local here = 'tests.lua.support.hooks.'

local Model = nn.class 'Model'
function Model:init() self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2) end
function Model:forward(s) return self.b(F.gelu(self.a(s.x))):sum() end

-- A policy in the list form; `change` sets keys of the entry of the first linear layer.
local function policy(change, recompute)
  return function(graph)
    local list = {}
    for i, node in ipairs(graph:nodes()) do
      list[i] = { node = node, recompute = recompute and 'all' or nil }
    end
    for key, value in require('nnscaler.sorted').sorted_pairs(change) do list[1][key] = value end
    return list
  end
end

local function train(how)
  local program = Program.new(Model {}, { seed = 1, pas_policy = how })
  local sample = { x = T.ones { 5, 3 } }
  program:prepare(sample)
  hooks.calls = {}
  program:train_step({ sample, sample }, { step = 0 })
  return program
end

describe('hooks of a policy', function()
  setup(function() log.set_level 'warning' end)
  teardown(function() log.set_level 'info' end)

  it('run around their operator in every micro-batch', function()
    local program = train(policy { pre_hook = here .. 'before', post_hook = here .. 'after',
      hook_meta = 'first' })
    local once = { 'before first [5,3] [4,3] [4]', 'after first [5,4]' }
    assert.same({ once[1], once[2], once[1], once[2] }, hooks.calls)
    local plan = program.sharing.plan
    assert.matches('a aten::linear#0: .- on 0, before tests.lua.support.hooks.before, after '
      .. 'tests.lua.support.hooks.after, meta first\n', plan:text())
    assert.equal(plan:text(), plans.from_json(plan:json()):text())
  end)

  it('do not run again with what is computed again', function()
    train(policy({ post_hook = here .. 'after' }, true))
    assert.same({ 'after  [5,4]', 'after  [5,4]' }, hooks.calls)
  end)

  it('are names of functions', function()
    assert.matches('before of a aten::linear is a function; expected the name of a function',
      message(train, policy { pre_hook = print }))
    assert.matches("nothing is named 'no.such.hook'",
      message(train, policy { pre_hook = 'no.such.hook' }))
    assert.matches("'tests.lua.support.hooks.nothing' is a number; expected a function",
      message(train, policy { pre_hook = here .. 'nothing' }))
  end)
end)
