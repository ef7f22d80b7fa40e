--- Adam: weight decay is added to the gradient.
return require('nnscaler.optim.adam_family')('_fused_adam_', 0)
