--- fsdp: data parallelism whose weights rest in shards over the scale units and are gathered for
--- use: dp with use_zero=3.
local dp = require 'nnscaler.policies.dp'
local fail = require 'nnscaler.fail'
local keys = require 'nnscaler.policies.keys'

return keys.policy({}, function(graph, cfg)
  local level = cfg.zero and cfg.zero.level
  if level and level ~= 3 then
    fail('plan', 'policies.fsdp',
      ('compute_config.use_zero is %d; fsdp is dp with 3'):format(level),
      'leave it out, or use pas_policy=dp')
  end
  dp(graph, cfg)
  graph:weights('sharded')
end)
