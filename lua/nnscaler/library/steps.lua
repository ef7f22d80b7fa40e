--- Steps of end-to-end modules: the program engine on a list of samples, its rules, and what the
--- ranks of a unit that do not make the loss get of the outputs.
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.groups'
local nested = require 'nnscaler.nested'
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'

local M = {}

local function is_staged(sharing) return sharing and sharing.stages.count > 1 end

local function check(module, samples, method)
  local state = module._parallel
  if not state.end2end then
    fail('usage', 'library.' .. method, ('%s of %s, which is not an end-to-end module; expected a '
      .. 'call of forward'):format(method, state.label),
      'parallelize it with compute_config.use_end2end')
  end
  if type(samples) ~= 'table' or getmetatable(samples) or #samples == 0 then
    fail('usage', 'library.' .. method, ('samples is %s; expected a list with at least one sample')
      :format(type(samples) == 'table' and 'an empty list' or 'a ' .. type(samples)))
  end
  local sharing = state.engine.sharing
  if not is_staged(sharing) then return end
  local expected = sharing.plan:info().micro_batches
  if #samples ~= expected then
    fail('usage', 'library.' .. method, ('%d samples; the schedule of the plan has %d '
      .. 'micro-batches'):format(#samples, expected), 'give as many samples as the policy set, say '
      .. 'pas_config.pipeline_nmicros')
  end
end

-- Gives the outputs of the ranks that make the loss, each of some samples, to all ranks of their
-- unit.
local function spread(engine, outputs)
  local sharing = engine.sharing
  if not is_staged(sharing) then return outputs end
  local group, own, told = groups.group(sharing.together), {}, {}
  for k, output in sorted.sorted_pairs(outputs) do
    if engine.told[k] then told[k] = output end
  end
  local mine = next(told) and base.json_encode(nested.encode(told, own)) or ''
  local all = {}
  for k, output in sorted.sorted_pairs(outputs) do all[k] = output end
  for i, text in ipairs(group:exchange(mine)) do
    local is_root, tensors, said = sharing.together[i] == sharing.rank, {}, {}
    if is_root then
      for k, x in ipairs(own) do tensors[k] = x:detach():contiguous() end
    elseif text ~= '' then
      said = nested.decode(base.json_decode(text), tensors, tensor.empty)
    end
    for _, x in ipairs(tensors) do group:broadcast(x, i - 1) end
    for k, output in sorted.sorted_pairs(said) do all[k] = output end
  end
  return all
end

-- What forward returned: the loss alone, or a list that it begins.
local function output(loss, rest)
  if #rest == 0 then return loss end
  local list = { loss }
  for i, item in ipairs(rest) do list[i + 1] = item end
  return list
end

-- d scale_fn(loss) / d loss
local function scaled_seed(scale_fn, loss)
  return tensor.enable_grad(function()
    local leaf = loss:detach():clone():requires_grad_()
    local scaled = scale_fn(leaf)
    if not tensor.is_tensor(scaled) or scaled:numel() ~= 1 or not scaled.requires_grad then
      fail('usage', 'library.train_step', 'scale_fn returned no scalar tensor that depends on the '
        .. 'loss', 'as in function(loss) return loss * 1024 end')
    end
    return tensor.grad(scaled, leaf)[1]
  end)
end

---@param module nnscaler.ParallelModule
---@param samples any[]
---@param opts nnscaler.TrainStepOpts
---@return any[]
function M.train(module, samples, opts)
  check(module, samples, 'train_step')
  local state, dummies = module._parallel, opts.is_dummy_batch or {}
  if not module.training then
    fail('usage', 'library.train_step', ('train_step of %s in evaluation mode'):format(state.label),
      'call train() first')
  end
  if opts.is_dummy_batch and #dummies ~= #samples then
    fail('usage', 'library.train_step', ('is_dummy_batch has %d entries for %d samples'):format(
      #dummies, #samples))
  end
  module:zero_grad()
  local outputs, weights = {}, {}
  for k = 1, #samples do weights[k] = dummies[k] and 0 or 1 end
  local random = door.get_random()
  state.engine.options.seed = random.seed
  local result = state.engine:train_step(samples, {
    step = random.step, weights = weights, unsummed = true,
    on_loss = function(k, loss, rest) outputs[k] = output(loss, rest) end,
    seed_of = function(engine, loss, n)
      if n == 0 or not opts.scale_fn then return engine:seed_of(loss, n) end
      return scaled_seed(opts.scale_fn, loss)
    end,
  })
  if result.weight > 0 then
    module:sync_grad()
    for _, leaf in ipairs(state.engine.parameters) do
      leaf.data.grad = state.engine:grad(leaf.name)
    end
  else -- dummies only, in all units: nothing is updated
    state.summed = true
  end
  return spread(state.engine, outputs)
end

---@param module nnscaler.ParallelModule
---@param samples any[]
---@return any[]
function M.infer(module, samples)
  check(module, samples, 'infer_step')
  local state, outputs, random = module._parallel, {}, door.get_random()
  if module.training then
    fail('usage', 'library.infer_step', ('infer_step of %s in training mode'):format(state.label),
      'call eval() first')
  end
  state.engine.told = {}
  for k, sample in ipairs(samples) do
    local results = { state.engine:infer(sample, { step = random.step, micro = k - 1 }) }
    if results[1] ~= nil then outputs[k] = output(results[1], { select(2, unpack(results)) }) end
  end
  return spread(state.engine, outputs)
end

return M
