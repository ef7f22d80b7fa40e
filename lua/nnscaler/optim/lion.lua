--- Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): the sign of a mean of
--- gradient and momentum, with decoupled weight decay. One slot per weight.
local check = require 'nnscaler.optim.check'
local door = require 'nnscaler._C.tensor'
local slots = require 'nnscaler.optim.slots'

local kind = {
  defaults = { lr = 1e-4, betas = { 0.9, 0.99 }, weight_decay = 0 },
}

function kind.check(options, key)
  check.betas(options, key)
  check.not_negative(options, key, { 'lr', 'weight_decay' })
end

function kind.slots() return { 'exp_avg' } end

function kind.update(_, bucket, options)
  local aten = require('nnscaler.ops').aten
  local beta1, beta2 = options.betas[1], options.betas[2]
  local direction = aten._foreach_lerp(bucket.exp_avg, bucket.gradients, 1 - beta1)
  aten._foreach_sign_(direction)
  if options.weight_decay ~= 0 then
    aten._foreach_mul_(bucket.parameters, 1 - bucket.lr * options.weight_decay)
  end
  aten._foreach_add_(bucket.parameters, direction, { alpha = -bucket.lr })
  aten._foreach_lerp_(bucket.exp_avg, bucket.gradients, 1 - beta2)
  for _, x in ipairs(direction) do door.release(x) end
end

--- Bytes of the directions.
function kind.workspace(_, weights)
  local total = 0
  for _, weight in ipairs(weights) do
    total = total + slots.tensor_bytes(weight.shape, weight.dtype)
  end
  return total
end

return kind
