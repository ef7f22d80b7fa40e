--- AdamW that always keeps float32 masters of 16-bit weights, by nnScaler's name for it.
local fail = require 'nnscaler.fail'

local kind = require('nnscaler.optim.adam_family')('_fused_adamw_', 1e-2)
local check = kind.check

function kind.check(options, key)
  check(options, key)
  if not options.master then
    fail('usage', key, 'mixed_precision_adamw keeps masters; master = false asks for none',
      'adamw takes it')
  end
end

return kind
