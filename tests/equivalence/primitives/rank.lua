--- What each rank of a case of primitives.lua runs: the comparison of plans/cell.lua under the
--- case's policy.
local base = require 'nnscaler._C.base'
local cases = require 'tests.equivalence.primitives.cases'
local cell = require 'tests.equivalence.plans.cell'
local models = require 'tests.equivalence.plans.models'

return function(argument)
  local case = cases[base.json_decode(argument).case]
  if case.make then models.primitive = case end
  package.preload['tests.equivalence.primitives.policy'] = function() return case.policy end
  require('nnscaler.log').set_level 'error'
  return base.json_encode(cell.run {
    model = case.make and 'primitive' or case.model,
    policy = 'tests.equivalence.primitives.policy', plan = case.plan,
    ranks = case.world or case.plan,
    micro = case.micro_batches or 3, config = case.pas_config,
  })
end
