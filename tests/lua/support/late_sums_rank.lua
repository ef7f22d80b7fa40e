--- One rank of two that train data-parallel: a gradient before and after the sum that comes late.
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local nn = require 'nnscaler.nn'

local Two = nn.class 'Two'
function Two:init()
  self.a, self.b = nn.Linear(3, 4, { bias = false }), nn.Linear(4, 2, { bias = false })
end
function Two:forward(sample) return self.b(self.a(sample.x):tanh()):square():sum() end

return function()
  require('nnscaler.log').set_level 'error'
  local rank = comm.current():rank()
  local program = Program.new(Two {}, { seed = 3, pas_policy = 'dp',
    compute_config = { plan_ngpus = 1, runtime_ngpus = 2 } })
  local sample = { x = T.full({ 2, 3 }, 0.25 * (rank + 1)) }
  program:prepare(sample)
  local out = {}
  for _, late in ipairs { true, false } do
    program:zero_grad()
    program.late_sums = late
    program:train_step({ sample, sample }, { step = 0 })
    out[#out + 1] = program:grad('a.weight'):clone():tolist()
    program.step.sum(program.states)
    program.states:wait()
    out[#out + 1] = program:grad('a.weight'):clone():tolist()
  end
  return base.json_encode { addend = out[1], late = out[2], beside = out[3], again = out[4],
    copied = program.states.copied }
end
