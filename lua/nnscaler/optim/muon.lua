--- Muon (Jordan et al. 2024): momentum whose matrix is made nearly orthogonal by five Newton–Schulz
--- steps. For matrices alone: other weights go to a group with another `type`. Meaning and defaults
--- are those of torch.optim.Muon.
local check = require 'nnscaler.optim.check'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local slots = require 'nnscaler.optim.slots'

local kind = {
  name = 'muon',
  defaults = { lr = 1e-3, weight_decay = 0.1, momentum = 0.95, nesterov = true,
    ns_coefficients = { 3.4445, -4.775, 2.0315 }, ns_steps = 5, eps = 1e-7,
    adjust_lr_fn = 'original', ns_dtype = 'bfloat16' },
  whole = true, -- a matrix is made orthogonal as a whole
}

local adjust = {
  original = function(rows, columns) return math.sqrt(math.max(1, rows / columns)) end,
  match_rms_adamw = function(rows, columns) return 0.2 * math.sqrt(math.max(rows, columns)) end,
}
local dtypes = { bfloat16 = true, float32 = true, float64 = true }

function kind.check(options, key)
  check.not_negative(options, key, { 'lr', 'weight_decay', 'momentum', 'eps' })
  if not adjust[options.adjust_lr_fn] then
    fail('usage', key, ("adjust_lr_fn is '%s'; expected original or match_rms_adamw"):format(
      tostring(options.adjust_lr_fn)))
  end
  if not dtypes[options.ns_dtype] then
    fail('usage', key, ("ns_dtype is '%s'; expected bfloat16, float32 or float64"):format(
      tostring(options.ns_dtype)))
  end
  local steps = options.ns_steps
  if type(steps) ~= 'number' or steps % 1 ~= 0 or steps < 1 or steps >= 100 then
    fail('usage', key, ('ns_steps is %s; expected an integer from 1 to 99'):format(tostring(steps)))
  end
  local c = options.ns_coefficients
  local ok = type(c) == 'table' and #c == 3
  for i = 1, 3 do ok = ok and type(c[i]) == 'number' end
  if not ok then fail('usage', key, 'ns_coefficients has to be a list of three numbers') end
end

--- Says why a weight cannot be updated.
---@param shape integer[]
---@return string? reason
function kind.refuses(shape)
  if #shape ~= 2 then return 'muon updates matrices' end
end

function kind.slots() return { 'momentum_buffer' } end

-- A matrix near the closest orthogonal one: singular values between about 0.5 and 1.5; and whether
-- it is transposed.
local function orthogonal(matrix, options)
  local a, b, c = unpack(options.ns_coefficients)
  local aten = require('nnscaler.ops').aten
  local tall = matrix.shape[1] > matrix.shape[2]
  local copy = aten._to_copy(matrix, { dtype = options.ns_dtype })
  local x = tall and copy:t() or copy
  x:div_(x:norm():clamp_min(options.eps))
  for _ = 1, options.ns_steps do
    local turned = x:t()
    local gram = x:matmul(turned)
    local change, before = aten.addmm(gram, gram, gram, { beta = b, alpha = c }), x
    x = aten.addmm(x, change, x, { beta = a })
    for _, gone in ipairs { gram, turned, change, before, copy } do door.release(gone) end
  end
  return x, tall
end

--- Bytes of what the largest matrix takes: its direction, and two in the dtype of the steps beside
--- two of its squares.
function kind.workspace(options, weights)
  local most = 0
  for _, weight in ipairs(weights) do
    local side = math.min(unpack(weight.shape))
    most = math.max(most, (options.nesterov and 1 or 0)
      * slots.tensor_bytes(weight.shape, weight.dtype)
      + 2 * slots.tensor_bytes(weight.shape, options.ns_dtype)
      + 2 * slots.tensor_bytes({ side, side }, options.ns_dtype))
  end
  return most
end

function kind.update(_, bucket, options)
  for i, weight in ipairs(bucket.parameters) do
    local gradient, buffer = bucket.gradients[i], bucket.momentum_buffer[i]
    buffer:lerp_(gradient, 1 - options.momentum)
    local ahead = options.nesterov and gradient:lerp(buffer, options.momentum) or nil
    local x, turned = orthogonal(ahead or buffer, options)
    local direction = turned and x:t() or x
    weight:mul_(1 - bucket.lr * options.weight_decay)
    local factor = adjust[options.adjust_lr_fn](weight.shape[1], weight.shape[2])
    weight:add_(direction, { alpha = -bucket.lr * factor })
    door.release(direction, x)
    if ahead then door.release(ahead) end
  end
end

return kind
