--- What each rank of a case of primitives.lua runs: the comparison of plans/rank.lua under the
--- case's policy.
local base = require 'nnscaler._C.base'
local cases = require 'tests.equivalence.primitives.cases'
local compare = require 'tests.equivalence.plans.rank'
local models = require 'tests.equivalence.plans.models'

return function(argument)
  local case = cases[base.json_decode(argument).case]
  if case.make then models.primitive = case end
  package.preload['tests.equivalence.primitives.policy'] = function() return case.policy end
  return compare(base.json_encode {
    model = case.make and 'primitive' or case.model,
    policy = 'tests.equivalence.primitives.policy', plan = case.plan,
    world = case.world or case.plan,
    micro_batches = case.micro_batches or 3, pas_config = case.pas_config or {},
  })
end
