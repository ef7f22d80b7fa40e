--- The engine of a model with parallel modules inside: the model runs as it is written, under
--- LibTorch's autograd, and each parallel module as its program. Ranks of a scale unit run the same
--- micro-batches; the first of them tells losses.
local checkpoint = require 'nnscaler.library.checkpoint'
local door = require 'nnscaler._C.tensor'
local optimizers = require 'nnscaler.library.optimizer'
local Parallel = require 'nnscaler.library.module'
local sample_of = require 'nnscaler.runtime.sample'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.MixedEngine: nnscaler.Engine
local Engine = {}
Engine.__index = Engine

--- Makes the engine; parameters get their values, of parallel modules this rank's parts.
---@param model nnscaler.nn.Module
---@param job table
---@param shared nnscaler.Sharing|nil of several ranks
---@return nnscaler.MixedEngine
function M.new(model, job, shared)
  local self = setmetatable({ model = model, job = job, sharing = shared, by_name = {},
    parameters = {}, buffers = {}, told = {} }, Engine)
  model:assign_paths()
  model:materialize(job.seed or 0, job.device)
  for i, entry in ipairs(model:named_parameters()) do
    self.parameters[i] = { name = entry.name, data = entry.param,
      requires_grad = entry.param.requires_grad }
    self.by_name[entry.name] = entry.param
  end
  for i, entry in ipairs(model:named_buffers()) do
    self.buffers[i] = { name = entry.name, data = entry.buffer,
      persistent = entry.persistent ~= false }
  end
  self.store = checkpoint.store_of(model)
  self.leads = not shared or shared.rank % shared.plan_ngpus == 0
  if shared then self:share(shared) end
  return self
end

-- Tells what the trainer asks of several ranks.
function Engine:share(shared)
  shared.parts = {}
  for _, leaf in ipairs(self.store.leaves) do
    local slice = leaf.slice
    local whole = table.concat(slice.shape, ' ') == table.concat(slice.whole, ' ')
    shared.parts[leaf.name] = { start = not whole and slice.start or nil, shape = slice.shape }
  end
  for _, entry in ipairs(Parallel.find(self.model)) do
    local own = entry.module._parallel.engine.sharing
    shared.lockstep = shared.lockstep or own and own.lockstep
  end
end

--- The parallel modules of a class.
---@param class_name string
---@return nnscaler.ParallelModule[]
function Engine:modules(class_name)
  local list = {}
  for _, entry in ipairs(Parallel.find(self.model)) do
    if entry.module._parallel.label == class_name then list[#list + 1] = entry.module end
  end
  return list
end

-- The step of the optimizer, with the parts that the step of programs has.
local Step = {}
Step.__index = Step

function Step:sum() self.optimizer:sync_shard_grad() end
function Step:scale(factor) self.optimizer:scale_grads(factor) end
function Step:norm() return self.optimizer.update:norm() end
function Step:clip(norm, maximum) self.optimizer.update:clip(norm, maximum) end
function Step:update(lr) self.optimizer.update:update(lr) end

--- Makes the optimizer of a job over parallel modules and the rest.
---@param config { type: any, args: table }
---@return nnscaler.Optimizer optimizer, nnscaler.Step step
function Engine:make_optimizer(config)
  self.optimizer = optimizers.new(self.model, config.type, config.args)
  return self.optimizer.inner, setmetatable({ optimizer = self.optimizer }, Step)
end

function Engine:zero_grad() self.optimizer:zero_grad() end

--- Gradient of this rank's part of a parameter, or nil.
---@param name string
---@return nnscaler.Tensor|nil
function Engine:grad(name) return self.by_name[name].grad end

-- Forward of micro-batch k of this unit.
function Engine:forward(sample, step, micro)
  local device = self.job.device
  if device and device ~= 'cpu' then
    sample = sample_of.map(sample, function(x) return x:to(device) end)
  end
  door.set_random { seed = self.job.seed or 0, step = step, micro = micro }
  door.reset_ordinals()
  local args, n = sample_of.arguments(self.job, sample)
  local results = { self.model(unpack(args, 1, n)) }
  sample_of.check_loss(results[1])
  return results, sample_of.weight(sample, results[2])
end

-- How many micro-batches every unit runs: where parallel modules gather weights over the units,
-- each has to take part in all of them.
function Engine:rounds(count)
  local shared = self.sharing
  if not (shared and shared.lockstep) then return count end
  return shared:over_all({ count }, 'max')[1]
end

--- Forward and backward of the micro-batches of one step; gradients are those of this rank.
---@param samples any[]
---@param context { step: integer, unweighted?: boolean }
---@return { loss: number, weight: number, sum: number, count: integer, losses: number[],
---  outputs: any[] }
function Engine:train_step(samples, context)
  self.model:train()
  local shared = self.sharing
  if shared then shared:check_samples(samples, context.step) end
  self.template = samples[1] or self.template
  local totals, losses, outputs = { 0, 0, 0, 0 }, {}, {}
  self.told = {}
  for k = 1, self:rounds(#samples) do
    local micro = shared and (k - 1) * shared.units + shared.unit or k - 1
    local idle = samples[k] == nil
    local results, n = self:forward(samples[k] or self.template, context.step, micro)
    local loss = results[1]
    if idle then n = 0 end
    if loss.requires_grad and (n > 0 or shared and shared.lockstep) then
      local seed = n > 0 and context.unweighted and 1 or n
      loss:backward(loss:new_full(loss.shape, seed))
    end
    if not idle then
      losses[k], outputs[k], self.told[k] = loss:item(), { select(2, unpack(results)) }, self.leads
    end
    if n > 0 and self.leads then
      for i, x in ipairs { n * losses[k], n, losses[k], 1 } do totals[i] = totals[i] + x end
    end
  end
  if shared then totals = shared:over_all(totals) end
  return { loss = totals[2] > 0 and totals[1] / totals[2] or 0, weight = totals[2],
    sum = totals[3], count = totals[4], losses = losses, outputs = outputs }
end

--- Loss of one micro-batch of the evaluation data; of the ranks of a unit the first has its weight.
---@param sample any
---@param context { step: integer, micro: integer }
---@return number loss, number weight, any[] outputs
function Engine:eval_step(sample, context)
  self.model:eval()
  local results, n
  tensor.no_grad(function()
    results, n = self:forward(sample, context.step or 0, context.micro or 0)
  end)
  if not self.leads then n = 0 end
  return n > 0 and results[1]:item() or 0, n, { select(2, unpack(results)) }
end

return M
