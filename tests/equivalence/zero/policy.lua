--- The policy of the cells: a builtin one, then what the cell changes.
local policies = require 'nnscaler.policies'

return function(graph, cfg)
  local own = cfg.pas_config
  local config = {}
  for key, value in next, cfg do config[key] = value end
  config.pas_config = own.config or {}
  policies.resolve(own.base)(graph, config)
  if own.recompute then graph:recompute(own.recompute) end
  for pattern, zero in require('nnscaler.sorted').sorted_pairs(own.zero or {}) do
    graph:weights(pattern, { zero = zero })
  end
end
