--- Adam and AdamW differ in their kernel and in the default of weight decay.
local fail = require 'nnscaler.fail'

local function check_unit(options, key)
  local betas = options.betas
  if type(betas) ~= 'table' or #betas ~= 2 then
    fail('usage', key, 'betas has to be a list of two numbers, as { 0.9, 0.999 }')
  end
  for i, beta in ipairs(betas) do
    if type(beta) ~= 'number' or beta < 0 or beta >= 1 then
      fail('usage', key, ('betas[%d] is %s; expected 0 ≤ beta < 1'):format(i, tostring(beta)))
    end
  end
  for _, name in ipairs { 'lr', 'eps', 'weight_decay' } do
    if type(options[name]) ~= 'number' or options[name] < 0 then
      fail('usage', key, ('%s is %s; expected a number ≥ 0'):format(name, tostring(options[name])))
    end
  end
end

---@param kernel string ATen's fused kernel
---@param weight_decay number default
---@return table kind
return function(kernel, weight_decay)
  local kind = {
    defaults = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = weight_decay,
      amsgrad = false, maximize = false },
    check = check_unit,
  }

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
  end

  return kind
end
