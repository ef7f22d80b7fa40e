--- dp: data parallelism. The plan is one device; scale units repeat it on other samples.
local fail = require 'nnscaler.fail'
local keys = require 'nnscaler.policies.keys'

return keys.policy({}, function(graph, cfg)
  if cfg.plan_ngpus ~= 1 then
    fail('plan', 'policies.dp',
      ('compute_config.plan_ngpus is %d; expected 1'):format(cfg.plan_ngpus),
      'data parallelism comes from runtime_ngpus / plan_ngpus; set plan_ngpus=1')
  end
  graph:replicate_rest()
end)
