--- Adam and AdamW differ in their kernel and in the default of weight decay.
local check = require 'nnscaler.optim.check'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'

---@param kernel string ATen's fused kernel
---@param weight_decay number default
---@return table kind
return function(kernel, weight_decay)
  local kind = {
    defaults = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = weight_decay,
      amsgrad = false, maximize = false, fused = true },
  }

  function kind.check(options, key)
    check.betas(options, key)
    check.not_negative(options, key, { 'lr', 'eps', 'weight_decay' })
    if options.fused ~= true then
      fail('usage', key, ('fused is %s; expected true: the kernels are fused ones'):format(
        tostring(options.fused)), 'leave it out')
    end
  end

  function kind.slots(options)
    if options.amsgrad then return { 'exp_avg', 'exp_avg_sq', 'max_exp_avg_sq' } end
    return { 'exp_avg', 'exp_avg_sq' }
  end

  function kind.update(_, bucket, options)
    local aten = require('nnscaler.ops').aten
    -- The kernel reads the number of this update for its bias corrections.
    local count = require('nnscaler.tensor').full({}, bucket.count + 1,
      { dtype = 'float32', device = bucket.parameters[1].device })
    local counts = {}
    for i = 1, #bucket.slots do counts[i] = count end
    aten[kernel](bucket.parameters, bucket.gradients, bucket.exp_avg, bucket.exp_avg_sq,
      bucket.max_exp_avg_sq or {}, counts, {
        lr = bucket.lr, beta1 = options.betas[1], beta2 = options.betas[2], eps = options.eps,
        weight_decay = options.weight_decay, amsgrad = options.amsgrad, maximize = options.maximize,
      })
    door.release(count)
  end

  return kind
end
