--- The eager engine: forward under LibTorch's autograd, no tracing. It is the reference for
--- everything else, so it does nothing clever.
local sample_of = require 'nnscaler.runtime.sample'

local M = {}

-- Bytes of garbage that steps may leave.
local SWEEP = 8 * 2 ^ 20

---@class nnscaler.Engine
---@field parameters { name: string, data: nnscaler.Tensor, requires_grad: boolean }[]
---@field buffers { name: string, data: nnscaler.Tensor, persistent: boolean }[]
local Engine = {}
Engine.__index = Engine

--- Makes the engine; the model's parameters are materialised on the job's device.
---@param model nnscaler.nn.Module
---@param job { seed: integer, device: string, forward_args?: function }
---@return nnscaler.Engine
function M.new(model, job)
  local self = setmetatable({ model = model, job = job, by_name = {} }, Engine)
  model:assign_paths()
  model:materialize(job.seed or 0, job.device)
  self.parameters, self.buffers = {}, {}
  for i, entry in ipairs(model:named_parameters()) do
    self.parameters[i] = {
      name = entry.name, data = entry.param, requires_grad = entry.param.requires_grad,
    }
    self.by_name[entry.name] = entry.param
  end
  for i, entry in ipairs(model:named_buffers()) do
    self.buffers[i] = {
      name = entry.name, data = entry.buffer, persistent = entry.persistent ~= false,
    }
  end
  self.random = require 'nnscaler._C.tensor'
  return self
end

--- All parameters, as an optimizer updates them.
function Engine:optimized() return self.parameters end

function Engine:zero_grad()
  for _, parameter in ipairs(self.parameters) do parameter.data.grad = nil end
end

-- The step of an optimizer over whole tensors, one part after another.
local Step = {}
Step.__index = Step

--- The step of an optimizer, with the parts that the step of programs has.
---@param optimizer nnscaler.Optimizer
---@return nnscaler.Step
function Engine:step_of(optimizer)
  return setmetatable({ engine = self, optimizer = optimizer }, Step)
end

function Step:sum() self.optimizer:collect(function(name) return self.engine:grad(name) end) end
function Step:scale(factor) self.measured = self.optimizer:scale(factor) end
function Step:norm() return self.measured end
function Step:clip(norm, maximum) self.optimizer:clip(norm, maximum) end
function Step:update(lr) self.optimizer:step(lr) end

--- Gradient of a parameter: the sum over the micro-batches of n·dloss/dw, or nil without a path.
---@param name string
---@return nnscaler.Tensor|nil
function Engine:grad(name) return self.by_name[name].grad end

function Engine:forward(sample, step, micro)
  local device = self.job.device
  if device and device ~= 'cpu' then
    sample = sample_of.map(sample, function(tensor) return tensor:to(device) end)
  end
  self.random.set_random { seed = self.job.seed or 0, step = step, micro = micro }
  self.random.reset_ordinals()
  local args, n = sample_of.arguments(self.job, sample)
  local results = { self.model(unpack(args, 1, n)) }
  sample_of.check_loss(results[1])
  return results, sample_of.weight(sample, results[2])
end

--- Forward and backward of the micro-batches of one step, in their order.
---@param samples any[]
---@param context { step: integer, unweighted?: boolean, scale?: number } unweighted: each loss
---  counts once in the gradients, whatever its weight; scale: of the loss
---@return { loss: number, weight: number, sum: number, count: integer, losses: number[],
---  outputs: any[] }
function Engine:train_step(samples, context)
  self.model:train()
  local total, weight, sum, count, losses, outputs = 0, 0, 0, 0, {}, {}
  for k, sample in ipairs(samples) do
    local results, n = self:forward(sample, context.step, k - 1)
    local loss = results[1]
    losses[k], outputs[k] = loss:item(), { select(2, unpack(results)) }
    if n > 0 then -- an empty micro-batch may have the loss 0/0: it counts for nothing
      local seed = sample_of.seed(loss, context.unweighted and 1 or n, context.scale)
      if loss.requires_grad then loss:backward(loss:new_full(loss.shape, seed)) end
      total, weight = total + n * losses[k], weight + n
      sum, count = sum + losses[k], count + 1
    end
  end
  self:sweep()
  return { loss = weight > 0 and total / weight or 0, weight = weight, sum = sum, count = count,
    losses = losses, outputs = outputs }
end

-- Collects what the forward passes left when it has become much. Lua would do so after as many
-- objects as it likes to keep, however large the tensors behind them are.
function Engine:sweep()
  local _, bytes = self.random.live()
  if bytes < (self.sweep_at or SWEEP) then return end
  collectgarbage()
  _, bytes = self.random.live()
  self.sweep_at = bytes + SWEEP
end

--- Loss of one micro-batch of the evaluation data, without gradients.
---@param sample any
---@param context { step: integer, micro: integer }
---@return number loss, number weight, any[] outputs
function Engine:eval_step(sample, context)
  self.model:eval()
  local results, n
  require('nnscaler.tensor').no_grad(function()
    results, n = self:forward(sample, context.step or 0, context.micro or 0)
  end)
  return n > 0 and results[1]:item() or 0, n, { select(2, unpack(results)) }
end

return M
