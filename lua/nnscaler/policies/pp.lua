--- pp: a pipeline of plan_ngpus stages of one device each.
local fail = require 'nnscaler.fail'
local hybrid = require 'nnscaler.policies.hybrid'
local keys = require 'nnscaler.policies.keys'

return keys.policy(hybrid.keys, function(graph, cfg)
  local config, stages = {}, (cfg.pas_config or {}).pipeline_nstages
  if stages and stages ~= 'auto' and stages ~= cfg.plan_ngpus then
    fail('usage', 'policies.pp', ('pas_config.pipeline_nstages is %d, but plan_ngpus is %d; '
      .. 'expected one device a stage'):format(stages, cfg.plan_ngpus),
      "leave it out, or take pas_policy='hybrid'")
  end
  for _, key in ipairs { 'pipeline_scheduler', 'pipeline_nmicros', 'pipeline_chunks' } do
    config[key] = (cfg.pas_config or {})[key]
  end
  config.pipeline_nstages = cfg.plan_ngpus
  return hybrid(graph, {
    plan_ngpus = cfg.plan_ngpus, runtime_ngpus = cfg.runtime_ngpus, pas_config = config,
    micro_batches = cfg.micro_batches, embedded = cfg.embedded,
  })
end)
