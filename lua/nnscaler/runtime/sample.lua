--- What both engines do with a micro-batch: arguments of forward, its weight, checks of the loss.
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

--- Returns forward's arguments for a sample: what the job's `forward_args(sample)` returns (one
--- value an argument), else the sample itself as the only one.
---@param job table
---@param sample any nested tables of tensors
---@return any[] args, integer count
function M.arguments(job, sample)
  if not job.forward_args then return { sample }, 1 end
  local function pack(...) return { ... }, select('#', ...) end
  return pack(job.forward_args(sample))
end

--- Returns a copy of nested tables with every tensor replaced by what `f` makes of it.
---@param value any
---@param f fun(tensor: nnscaler.Tensor): any
---@return any
function M.map(value, f)
  if type(value) == 'userdata' then return f(value) end
  if type(value) ~= 'table' then return value end
  local copy = {}
  for key, item in sorted.sorted_pairs(value) do copy[key] = M.map(item, f) end
  return copy
end

--- Returns the first tensor of a sample, fields in sorted order, or nil.
---@param value any
---@return nnscaler.Tensor|nil
function M.first_tensor(value)
  if type(value) == 'userdata' then return value end
  if type(value) ~= 'table' then return nil end
  for _, item in sorted.sorted_pairs(value) do
    local found = M.first_tensor(item)
    if found then return found end
  end
  return nil
end

--- Returns the number of samples of a micro-batch: dimension 0 of its first tensor.
---@param sample any
---@return integer
function M.count(sample)
  local tensor = M.first_tensor(sample)
  if not tensor then
    fail('data', 'trainer.sample', 'the micro-batch holds no tensor; expected at least one, with '
      .. 'the samples along dimension 0')
  end
  return tensor.shape[1] or 1
end

--- Returns the weight n of a micro-batch: `tokens` of forward's second result (a number or a
--- scalar tensor), else the number of samples.
---@param sample any
---@param extra any forward's second result
---@return number
function M.weight(sample, extra)
  local tokens = type(extra) == 'table' and extra.tokens or nil
  if tokens == nil then return M.count(sample) end
  if type(tokens) == 'userdata' then tokens = tokens:item() end
  if type(tokens) ~= 'number' or tokens < 0 then
    fail('model', 'trainer.forward', ("forward's second result has tokens = %s; expected a number "
      .. '≥ 0 or a scalar tensor'):format(tostring(tokens)))
  end
  return tokens
end

local kHalf = 65504 -- the largest number of float16

--- The number that backward starts with: n times the scale of the loss. What its dtype cannot hold
--- is infinite, so that gradients overflow and the scale falls.
---@param loss nnscaler.Tensor
---@param n number weight of the micro-batch
---@param scale? number 1 unless told
---@return number
function M.seed(loss, n, scale)
  local value = n * (scale or 1)
  return loss.dtype == 'float16' and value > kHalf and math.huge or value
end

--- Raises unless forward's first result can be a loss.
---@param loss any
function M.check_loss(loss)
  if type(loss) ~= 'userdata' then
    fail('model', 'trainer.forward', ("forward's first result is a %s; expected the loss, a tensor "
      .. 'with one element'):format(type(loss)))
  end
  local shape = loss.shape
  if #shape ~= 0 and not (#shape == 1 and shape[1] == 1) then
    fail('model', 'trainer.forward', ('the loss has shape [%s]; expected a scalar')
      :format(table.concat(shape, ', ')), "reduce it: loss:mean(), or reduction = 'mean'")
  end
end

return M
