--- AdamW: Adam with decoupled weight decay.
return require('nnscaler.optim.adam_family')('_fused_adamw_', 1e-2)
