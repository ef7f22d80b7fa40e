--- How the elements of a parameter come to be. Each function returns a description; the values
--- are a pure function of the run's seed, the parameter's name and the index of the element.

local M = {}

--- Every element the same.
---@param value number
---@return table
function M.constant(value) return { kind = 'constant', value = value } end

---@return table
function M.zeros() return M.constant(0) end

---@return table
function M.ones() return M.constant(1) end

---@param mean? number 0 by default
---@param std? number 1 by default
---@return table
function M.normal(mean, std) return { kind = 'normal', mean = mean or 0, std = std or 1 } end

---@param low? number 0 by default
---@param high? number 1 by default
---@return table
function M.uniform(low, high) return { kind = 'uniform', low = low or 0, high = high or 1 } end

--- Normal, conditioned on lying within ±cut.
---@param mean? number 0 by default
---@param std? number 1 by default
---@param cut? number 2 by default
---@return table
function M.trunc_normal(mean, std, cut)
  return { kind = 'trunc_normal', mean = mean or 0, std = std or 1, cut = cut or 2 }
end

--- Glorot's uniform distribution.
---@param fan_in integer inputs of one output
---@param fan_out integer outputs that one input reaches
---@param gain? number 1 by default
---@return table
function M.xavier_uniform(fan_in, fan_out, gain)
  local bound = (gain or 1) * math.sqrt(6 / (fan_in + fan_out))
  return M.uniform(-bound, bound)
end

--- Glorot's normal distribution.
---@param fan_in integer
---@param fan_out integer
---@param gain? number 1 by default
---@return table
function M.xavier_normal(fan_in, fan_out, gain)
  return M.normal(0, (gain or 1) * math.sqrt(2 / (fan_in + fan_out)))
end

-- He's gain for a leaky rectifier of negative slope `a`.
local function he(a) return math.sqrt(2 / (1 + a * a)) end

--- He's uniform distribution for layers before a (leaky) rectifier.
---@param fan_in integer
---@param slope? number negative slope of the rectifier, 0 by default
---@return table
function M.kaiming_uniform(fan_in, slope)
  local bound = he(slope or 0) * math.sqrt(3 / fan_in)
  return M.uniform(-bound, bound)
end

--- He's normal distribution.
---@param fan_in integer
---@param slope? number negative slope of the rectifier, 0 by default
---@return table
function M.kaiming_normal(fan_in, slope)
  return M.normal(0, he(slope or 0) / math.sqrt(fan_in))
end

--- A matrix with orthonormal rows or columns, times `gain`. Computed whole.
---@param gain? number 1 by default
---@return table
function M.orthogonal(gain) return { kind = 'orthogonal', gain = gain or 1 } end

--- The identity matrix.
---@return table
function M.eye() return { kind = 'eye' } end

--- What PyTorch gives linear and convolution layers: uniform within ±1/√fan_in.
---@param fan_in integer
---@return table
function M.linear_default(fan_in)
  if fan_in == 0 then return M.zeros() end
  local bound = 1 / math.sqrt(fan_in)
  return M.uniform(-bound, bound)
end

return M
