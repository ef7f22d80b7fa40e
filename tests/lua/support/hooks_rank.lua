--- A model trained under a policy with hooks, on a rank thread of its own: what they saw, and the
--- plan as text, read back from JSON too.
local F = require 'nnscaler.functional'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local hooks = require 'tests.lua.support.hooks'
local nn = require 'nnscaler.nn'
local plans = require 'nnscaler._C.plan'

local here = 'tests.lua.support.hooks.'

-- Keys of the entry of the first linear layer, and whether all is recomputed.
local cases = {
  both = { { pre_hook = here .. 'before', post_hook = here .. 'after', hook_meta = 'first' } },
  again = { { post_hook = here .. 'after' }, true },
  value = { { pre_hook = print } },
  unknown = { { pre_hook = 'no.such.hook' } },
  number = { { pre_hook = here .. 'nothing' } },
}

local Model = nn.class 'Model'
function Model:init() self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2) end
function Model:forward(s) return self.b(F.gelu(self.a(s.x))):sum() end

return function(name)
  require('nnscaler.log').set_level 'error'
  local change, recompute = unpack(cases[name])
  local program = Program.new(Model {}, { seed = 1, pas_policy = function(graph)
    local list = {}
    for i, node in ipairs(graph:nodes()) do
      list[i] = { node = node, recompute = recompute and 'all' or nil }
    end
    for key, value in require('nnscaler.sorted').sorted_pairs(change) do list[1][key] = value end
    return list
  end })
  local sample = { x = T.ones { 5, 3 } }
  program:prepare(sample)
  program:train_step({ sample, sample }, { step = 0 })
  local plan = program.sharing.plan
  return base.json_encode { calls = hooks.calls, text = plan:text(),
    again = plans.from_json(plan:json()):text() }
end
