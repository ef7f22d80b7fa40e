--- pp: a pipeline of plan_ngpus stages of one device each.
local hybrid = require 'nnscaler.policies.hybrid'

return function(graph, cfg)
  local config = {}
  for _, key in ipairs { 'pipeline_scheduler', 'pipeline_nmicros', 'pipeline_chunks' } do
    config[key] = (cfg.pas_config or {})[key]
  end
  config.pipeline_nstages = cfg.plan_ngpus
  return hybrid(graph, {
    plan_ngpus = cfg.plan_ngpus, runtime_ngpus = cfg.runtime_ngpus, pas_config = config,
    micro_batches = cfg.micro_batches,
  })
end
