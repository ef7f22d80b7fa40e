--- Adafactor (Shazeer and Stern 2018): second moments of a matrix as one row and one column, so
--- that an m × n weight keeps m + n numbers. Meaning and defaults are torch.optim.Adafactor's:
--- `lr` is the most that a step may be relative to the size of the weight.
local check = require 'nnscaler.optim.check'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local slots = require 'nnscaler.optim.slots'

-- Relative rounding errors: PyTorch's default of the first eps.
local rounding = { float64 = 2 ^ -52, float32 = 2 ^ -23, bfloat16 = 2 ^ -7, float16 = 2 ^ -10 }

local kind = {
  name = 'adafactor',
  defaults = { lr = 1e-2, beta2_decay = -0.8, eps = { 0, 1e-3 }, d = 1, weight_decay = 0 },
  whole = true, -- rows, columns and norms of whole weights
}

function kind.check(options, key)
  check.not_negative(options, key, { 'lr', 'weight_decay' })
  if type(options.beta2_decay) ~= 'number' or options.beta2_decay > 0 then
    fail('usage', key, ('beta2_decay is %s; expected a number ≤ 0'):format(
      tostring(options.beta2_decay)))
  end
  if type(options.d) ~= 'number' or options.d < 1 then
    fail('usage', key, ('d is %s; expected a number ≥ 1'):format(tostring(options.d)))
  end
  local eps = options.eps
  local ok = type(eps) == 'table' and #eps == 2
  for i = 1, 2 do ok = ok and type(eps[i]) == 'number' and eps[i] >= 0 end
  if not ok then
    fail('usage', key, 'eps has to be a list of two numbers ≥ 0, as { 0, 1e-3 }',
      'the first is the rounding error of the weight\'s dtype where it is 0')
  end
end

-- The shape with 1 in place of its last (1) or last but one (2) dimension; nil of a vector.
local function with_one(shape, from_end)
  if #shape < 2 then return nil end
  local out = { unpack(shape) }
  out[#out + 1 - from_end] = 1
  return out
end

function kind.slots()
  return {
    { name = 'row_var', shape = function(shape) return with_one(shape, 1) end },
    { name = 'col_var', shape = function(shape) return with_one(shape, 2) end },
    { name = 'variance', shape = function(shape) return #shape < 2 and shape or nil end },
  }
end

-- 2-norm over the square root of the number of elements.
local function size_of(x) return x:norm():item() / math.sqrt(x:numel()) end

local function update(bucket, i, options)
  local weight, gradient = bucket.parameters[i], bucket.gradients[i]
  local aten = require('nnscaler.ops').aten
  local count, eps1 = bucket.count + 1, options.eps[1]
  if eps1 == 0 then eps1 = rounding[weight.dtype] end
  local share = count ^ options.beta2_decay
  local alpha = math.max(options.eps[2], size_of(weight)) * math.min(bucket.lr, count ^ -0.5)
  if options.weight_decay ~= 0 then weight:mul_(1 - bucket.lr * options.weight_decay) end

  local estimate
  if bucket.row_var and bucket.row_var[i] then
    local row, column = bucket.row_var[i], bucket.col_var[i]
    -- Means of squares without squaring the whole gradient.
    local function mean_square(dim)
      return aten.linalg_vector_norm(gradient, 2, { dim }, true):square()
        / gradient.shape[#gradient.shape + 1 + dim]
    end
    row:lerp_(mean_square(-1), share)
    column:lerp_(mean_square(-2), share)
    estimate = row:matmul(column)
    estimate:div_(row:mean(-2, true):clamp_min(eps1))
  else
    local variance = bucket.variance[i]
    local squares = gradient * gradient
    variance:lerp_(squares, share)
    door.release(squares)
    estimate = variance:clone()
  end
  local step = estimate:clamp_min_(eps1 * eps1):rsqrt_():mul_(gradient)
  weight:add_(step, { alpha = -alpha / math.max(1, size_of(step) / options.d) })
  door.release(step, estimate)
end

--- Bytes of the largest estimate, with rows and columns of it.
function kind.workspace(_, weights)
  local most = 0
  for _, weight in ipairs(weights) do
    local bytes = slots.tensor_bytes(weight.shape, weight.dtype)
    local rows = weight.shape[#weight.shape] or 1
    most = math.max(most, bytes + 4 * bytes / math.max(1, rows))
  end
  return most
end

function kind.update(_, bucket, options)
  for i = 1, #bucket.parameters do update(bucket, i, options) end
end

return kind
