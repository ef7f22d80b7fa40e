--- Stochastic gradient descent with momentum, dampening, Nesterov's variant and weight decay.
local check = require 'nnscaler.optim.check'
local fail = require 'nnscaler.fail'

local kind = {
  defaults = { lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false,
    maximize = false },
}

function kind.check(options, key)
  check.not_negative(options, key, { 'lr', 'momentum', 'weight_decay' })
  if options.nesterov and (options.momentum <= 0 or options.dampening ~= 0) then
    fail('usage', key, ('nesterov with momentum %g and dampening %g; expected momentum > 0 and '
      .. 'dampening 0'):format(options.momentum, options.dampening))
  end
end

function kind.slots(options)
  if options.momentum == 0 then return {} end
  return { 'momentum_buffer' }
end

function kind.update(_, bucket, options)
  require('nnscaler.ops').aten._fused_sgd_(bucket.parameters, bucket.gradients,
    bucket.momentum_buffer or {}, {
      lr = bucket.lr, momentum = options.momentum, dampening = options.dampening,
      weight_decay = options.weight_decay, nesterov = options.nesterov,
      maximize = options.maximize, is_first_step = bucket.count == 0,
    })
end

return kind
