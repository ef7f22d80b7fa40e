--- Precision of a job: the one place that says what its names stand for.
---
--- A name says the dtypes of parameters, buffers and floating inputs. The `-mixed` ones keep
--- float32 and run forward under autocast; those with float16 scale the loss
--- (trainer/loss_scale.lua).
--- Gradients of 16-bit weights are summed in float32, those of others in the weight's dtype.
local fail = require 'nnscaler.fail'
local nearest = require 'nnscaler.nearest'
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.Precision
---@field parameter string|nil dtype; nil: as the model made it
---@field buffer string|nil
---@field input string|nil
---@field autocast string|nil dtype of the region that forward runs in
---@field scaled boolean whether the loss is scaled

local dtypes = { fp64 = 'float64', fp32 = 'float32', bf16 = 'bfloat16', fp16 = 'float16' }
local names = {
  none = {}, fp64 = { 'float64' }, fp32 = { 'float32' }, bf16 = { 'bfloat16' },
  fp16 = { 'float16' }, ['64-true'] = { 'float64' }, ['32-true'] = { 'float32' },
  ['bf16-true'] = { 'bfloat16' }, ['16-true'] = { 'float16' },
  ['bf16-mixed'] = { 'float32', autocast = 'bfloat16' },
  ['16-mixed'] = { 'float32', autocast = 'float16' },
}
local keys = { 'buffer', 'gradient', 'input', 'parameter', 'reduce' }

local function dtype_at(given, key)
  local name = given[key]
  if name == nil or name == 'none' then return nil end
  if not dtypes[name] then
    fail('usage', 'precision', ("precision.%s is '%s'; expected fp64, fp32, bf16, fp16 or none")
      :format(key, tostring(name)), nearest(name, { 'fp64', 'fp32', 'bf16', 'fp16', 'none' }))
  end
  return dtypes[name]
end

-- Gradients are summed in one dtype, which follows from that of the parameters.
local function check_sums(given, parameter)
  local expected = M.gradient_dtype(parameter or 'float32')
  for _, key in ipairs { 'gradient', 'reduce' } do
    local asked = dtype_at(given, key)
    if asked and asked ~= expected then
      fail('usage', 'precision', ('precision.%s is %s, and gradients of %s parameters are summed '
        .. 'in %s'):format(key, given[key], given.parameter or 'fp32', expected), 'leave it out')
    end
  end
end

local function of_table(given)
  for _, key in ipairs(sorted.sorted_keys(given)) do
    local known = false
    for _, name in ipairs(keys) do known = known or name == key end
    if not known then
      fail('usage', 'precision', ("unknown key 'precision.%s'; expected %s"):format(tostring(key),
        table.concat(keys, ', ')), nearest(key, keys))
    end
  end
  local out = { parameter = dtype_at(given, 'parameter'), buffer = dtype_at(given, 'buffer'),
    input = dtype_at(given, 'input') }
  check_sums(given, out.parameter)
  out.scaled = out.parameter == 'float16'
  return out
end

--- The dtype in which addends of a weight's gradient are summed (gradient_dtype of
--- src/lower/program.h).
---@param weight string dtype
---@return string
function M.gradient_dtype(weight)
  return (weight == 'bfloat16' or weight == 'float16') and 'float32' or weight
end

--- What a job's `precision` says.
---@param given string|table|nil a name, or dtypes by what has them; nil: 'none'
---@return nnscaler.Precision
function M.of(given)
  if type(given) == 'table' then return of_table(given) end
  local what = names[given or 'none']
  if not what then
    local known = sorted.sorted_keys(names)
    fail('usage', 'precision', ("'%s' is no precision; expected %s"):format(tostring(given),
      table.concat(known, ', ')), nearest(given, known))
  end
  return { parameter = what[1], buffer = what[1], input = what[1], autocast = what.autocast,
    scaled = what[1] == 'float16' or what.autocast == 'float16' }
end

--- Gives a model's floating parameters and buffers their dtypes, and has its forward run under
--- autocast where the precision says so.
---@param model nnscaler.nn.Module
---@param precision nnscaler.Precision
---@param device? string that the job runs on
function M.apply(model, precision, device)
  local function cast(x, dtype)
    if dtype and x:is_floating_point() then x.dtype = dtype end
  end
  for _, x in ipairs(model:parameters()) do cast(x, precision.parameter) end
  for _, entry in ipairs(model:named_buffers()) do cast(entry.buffer, precision.buffer) end
  if not precision.autocast then return end
  local forward, kind = model.forward, (device or 'cpu'):match '^%a+'
  rawset(model, 'forward', function(...)
    return tensor.autocast_on(kind, precision.autocast, forward, ...)
  end)
end

return M
