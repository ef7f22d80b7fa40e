--- One rank of a data-parallel run of two linear layers: what its sums of gradients do to memory.
local C = require 'nnscaler._C.runtime'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local nn = require 'nnscaler.nn'

local Two = nn.class 'Two'
function Two:init()
  self.a, self.b = nn.Linear(8, 16, { bias = false }), nn.Linear(16, 4, { bias = false })
end
function Two:forward(sample) return self.b(self.a(sample.x):tanh()):square():sum() end

return function()
  require('nnscaler.log').set_level 'error'
  local rank = comm.current():rank()
  local engine = Program.new(Two {}, { seed = 3, device = 'cpu', pas_policy = 'dp',
    compute_config = { plan_ngpus = 1, runtime_ngpus = 2 } })
  local sample = { x = T.full({ 2, 8 }, 0.25 * (rank + 1)) }
  engine:prepare(sample)
  local copied, calls = C.copied_bytes(), {}
  engine.late_sums = true
  engine:train_step({ sample, sample }, { step = 0, seed = 3 })
  local states, before = engine.states, {}
  for name in next, states.leaves do before[name] = states:gradient(name):clone():tolist() end
  for _, name in ipairs { 'cat', 'empty', 'zeros' } do
    local f = T[name]
    T[name] = function(...)
      calls[#calls + 1] = name
      return f(...)
    end
  end
  engine.step.sum(states)
  states:wait()
  local after = {}
  for name in next, states.leaves do after[name] = states:gradient(name):tolist() end
  return base.json_encode { copied = C.copied_bytes() - copied, calls = calls,
    sets = #states.sets, before = before, after = after,
    elements = states.sets[1].flat:numel() }
end
