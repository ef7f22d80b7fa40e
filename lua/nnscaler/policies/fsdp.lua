--- fsdp: data parallelism whose weights rest in shards over the scale units and are gathered for
--- use.
local dp = require 'nnscaler.policies.dp'
local keys = require 'nnscaler.policies.keys'

return keys.policy({}, function(graph, cfg)
  dp(graph, cfg)
  graph:weights('sharded')
end)
