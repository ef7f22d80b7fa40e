--- What a step makes of the losses and gradients of its micro-batches: their mean (each weighted by
--- its tokens or samples), their sum, or the sum divided by all tokens.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local ranks = require 'nnscaler.ranks'
local sorted = require 'nnscaler.sorted'

local M = {}

--- Whether gradients are sums of those of the losses, whatever micro-batches weigh.
---@param t nnscaler.Trainer
---@return boolean
function M.unweighted(t) return t.args.optimizer.grad_reduction ~= 'mean' end

-- What aggregate_outputs_fn says of the outputs of this rank, summed over ranks; nil without it.
local function aggregated(t, result)
  local f = t.args.optimizer.aggregate_outputs_fn
  if not f then return nil end
  local outputs = {}
  for k, rest in sorted.sorted_pairs(result.outputs) do
    -- Of the ranks of a unit one tells what forward has returned.
    if not t.engine.told or t.engine.told[k] then
      outputs[#outputs + 1] = { result.losses[k], unpack(rest) }
    end
  end
  local mine = f(outputs)
  for name, value in sorted.sorted_pairs(type(mine) == 'table' and mine or { mine }) do
    if type(name) ~= 'string' or type(value) ~= 'number' then
      fail('usage', 'trainer.aggregate_outputs_fn', ('it returned %s; expected a table of numbers '
        .. 'by name'):format(type(mine) == 'table' and ("a %s as '%s'"):format(type(value),
        tostring(name)) or 'a ' .. type(mine)), 'loss_sum, num_batches, num_tokens, and others')
    end
  end
  local sums = {}
  for _, text in ipairs(ranks.exchange(base.json_encode(mine or {}))) do
    for name, value in sorted.sorted_pairs(base.json_decode(text)) do
      sums[name] = (sums[name] or 0) + value
    end
  end
  return sums
end

-- Tokens of the step, as forward or aggregate_outputs_fn told them.
local function tokens_of(t, result)
  local told = result.aggregated and result.aggregated.num_tokens
  if told then return told end
  local missing = 0
  for _, rest in sorted.sorted_pairs(result.outputs) do
    if type(rest[1]) ~= 'table' or rest[1].tokens == nil then missing = 1 end
  end
  if t.sharing then missing = t.sharing:over_all({ missing }, 'max')[1] end
  if missing > 0 then
    fail('model', 'trainer.reduction', 'per-token-mean, but forward does not tell its tokens',
      'return loss, { tokens = n } from forward, or num_tokens from optimizer.aggregate_outputs_fn')
  end
  return result.weight
end

--- Sets result.loss, result.divisor (of the gradients) and result.aggregated.
---@param t nnscaler.Trainer
---@param result table what the engine returned
function M.apply(t, result)
  local options = t.args.optimizer
  local of_loss, of_gradients = options.loss_reduction or 'mean', options.grad_reduction or 'mean'
  result.aggregated = aggregated(t, result)
  local told = result.aggregated or {}
  local tokens
  if of_loss == 'per-token-mean' or of_gradients == 'per-token-mean' then
    tokens = tokens_of(t, result)
  end
  local sum = told.loss_sum or result.sum
  if of_loss == 'sum' then
    result.loss = sum
  elseif of_loss == 'per-token-mean' then
    result.loss = tokens > 0 and sum / tokens or 0
  elseif told.loss_sum then
    result.loss = told.loss_sum / (told.num_batches or result.count)
  end
  result.divisor = of_gradients == 'sum' and 1 or of_gradients == 'mean' and result.weight or tokens
end

return M
