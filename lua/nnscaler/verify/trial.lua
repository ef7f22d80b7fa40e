--- A few training steps of one engine, recorded so that runs can be compared: what
--- `nnscaler verify` and the plan matrix do with the reference (eager, one device) and each plan.
local batches = require 'nnscaler.trainer.batches'
local optim = require 'nnscaler.optim'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.verify.Trial
---@field steps { loss: number, weight: number, gnorm: number }[] gnorm: before clipping
---@field gradients table<string, nnscaler.Tensor> of the first step, of those that have one
---@field names string[] of all parameters
---@field weights table<string, nnscaler.Tensor> after the last step
---@field initial table<string, nnscaler.Tensor>
---@field like_gradient fun(name: string, x: nnscaler.Tensor): nnscaler.Tensor of what lies as a
---  weight on this rank, what lies as its gradient
---@field buffers table<string, nnscaler.Tensor> after the last step
---@field lr number

-- A copy of what a parameter or buffer holds.
local function content(x)
  if x.kind == 'parameter' then x = x.data end
  return x:detach():clone()
end

local function contents(list)
  local out = {}
  for _, entry in ipairs(list) do out[entry.name] = content(entry.data) end
  return out
end

--- Samples of steps from the first one on: those of one scale unit of several.
---@param t nnscaler.Trainer
---@param count integer steps
---@param unit integer
---@param units integer
---@return any[][]
function M.samples(t, count, unit, units)
  local steps, at = {}, batches.start()
  for s = 1, count do
    local first, n = t.span:micro_batches(at)
    t.span:advance(at)
    if t.span:epoch_ended(at) then t.span:next_epoch(at) end
    steps[s] = {}
    for k = unit, n - 1, units do table.insert(steps[s], t.train_loader:get(first + k)) end
  end
  return steps
end

---@class nnscaler.verify.How
---@field optimizer table of the job
---@field clip_gnorm? number
---@field seed integer
---@field first_step? integer
---@field before? fun(step: integer) before each step, from 1
---@field summed? fun(result: table, gnorm: number) once gradients are summed and scaled
---@field after? fun(step: integer) after the update

--- Trains and records.
---@param engine nnscaler.Engine
---@param steps any[][] samples of each step, those of this rank's unit
---@param how nnscaler.verify.How
---@return nnscaler.verify.Trial
function M.run(engine, steps, how)
  local optimizer = optim.new(how.optimizer, engine:optimized())
  local update = engine:step_of(optimizer)
  local out = { steps = {}, gradients = {}, names = {}, lr = optimizer.lr,
    initial = contents(engine.parameters) }
  for i, parameter in ipairs(engine.parameters) do out.names[i] = parameter.name end
  out.like_gradient = function(name, x)
    return engine.states and engine.states:like_gradient(name, x) or x
  end
  for s, samples in ipairs(steps) do
    if how.before then how.before(s) end
    engine:zero_grad()
    local result = engine:train_step(samples, { step = (how.first_step or 0) + s - 1,
      seed = how.seed })
    local step = { loss = result.loss, weight = result.weight, gnorm = 0 }
    if result.weight > 0 then
      update:sum()
      update:scale(1 / result.weight)
      step.gnorm = update:norm()
      if how.summed then how.summed(result, step.gnorm) end
      for _, parameter in ipairs(s == 1 and engine.parameters or {}) do
        local name = parameter.name
        local gradient = parameter.requires_grad and engine:grad(name)
        if gradient then out.gradients[name] = gradient:detach():clone() end
      end
      update:clip(step.gnorm, how.clip_gnorm or 0)
      update:update(optimizer.lr)
    end
    out.steps[s] = step
    if how.after then how.after(s) end
  end
  out.weights, out.buffers = contents(engine.parameters), contents(engine.buffers)
  return out
end

---@class nnscaler.verify.Row
---@field what 'loss'|'gnorm'|'weight of the step'|'initial weight'|'gradient'|'weight'|'buffer'
---@field name string of the parameter, or of the step
---@field difference number ‖Δ‖ / ‖reference‖
---@field zero? boolean the reference is zero by structure: difference is ‖got‖ / ‖all gradients‖
---   (gradient), or ‖Δ‖ / (steps · lr · √n) (weight)

local function norm(x) return x:numel() == 0 and 0 or x:to('float64'):norm():item() end

-- ‖a − b‖ relative to the norm of the whole that b is a part of; absolute where that is zero.
local function relative(a, b, whole)
  local scale = norm(whole)
  return norm(a:to 'float64' - b:to 'float64') / (scale > 0 and scale or 1)
end

-- Of numbers.
local function apart(a, b)
  if a == b then return 0 end
  return math.abs(a - b) / (b ~= 0 and math.abs(b) or 1)
end

--- Compares a trial with the reference; tensors of the trial may be parts.
---@param got nnscaler.verify.Trial
---@param want nnscaler.verify.Trial
---@param part fun(name: string, whole: nnscaler.Tensor): nnscaler.Tensor this rank's part
---@return nnscaler.verify.Row[]
function M.compare(got, want, part)
  local rows = {}
  local function row(what, name, difference, zero)
    rows[#rows + 1] = { what = what, name = name, difference = difference, zero = zero }
  end
  for s, step in ipairs(want.steps) do
    local name = ('step %d'):format(s)
    row('loss', name, apart(got.steps[s].loss, step.loss))
    row('weight of the step', name, apart(got.steps[s].weight, step.weight))
    row('gnorm', name, apart(got.steps[s].gnorm, step.gnorm))
  end
  local all = want.steps[1].gnorm
  for _, name in ipairs(got.names) do
    local a, b = got.gradients[name], want.gradients[name]
    local initial = part(name, want.initial[name])
    row('initial weight', name, relative(got.initial[name], initial, initial))
    if (a == nil) ~= (b == nil) then
      row('gradient', name, math.huge) -- only one has a path to the loss
    elseif b then
      if norm(b) <= 1e-10 * all then
        row('gradient', name, all > 0 and norm(a) / all or norm(a), true)
      else
        row('gradient', name, relative(a, got.like_gradient(name, part(name, b)), b))
      end
    end
    -- Where the gradient is rounding noise, Adam makes steps of some size of it.
    local now, later = got.weights[name]:to 'float64', part(name, want.weights[name])
    local delta = now - later:to 'float64'
    if b then
      local noise = part(name, b):abs():le(1e-10 * all)
      local left = norm(delta:masked_fill(noise:logical_not(), 0))
      if left > 0 then
        row('weight', name, left / (#want.steps * want.lr * math.sqrt(noise:sum():item())), true)
      end
      delta = delta:masked_fill(noise, 0)
    end
    local scale = norm(want.weights[name])
    row('weight', name, norm(delta) / (scale > 0 and scale or 1))
  end
  for name, buffer in require('nnscaler.sorted').sorted_pairs(got.buffers) do
    local whole = want.buffers[name]
    row('buffer', name, relative(buffer, part(name, whole), whole))
  end
  return rows
end

--- Largest difference allowed of a row in float64.
---@param row nnscaler.verify.Row
---@return number
function M.limit(row)
  if row.what == 'initial weight' then return 0 end
  if not row.zero then return 1e-11 end
  return row.what == 'weight' and 1 or 1e-10
end

--- Copies the reference of rank 0 to all ranks; a collective. The others pass nil.
---@param trial nnscaler.verify.Trial|nil
---@param group userdata nnscaler.Group
---@return nnscaler.verify.Trial
function M.share(trial, group)
  local base = require 'nnscaler._C.base'
  local sorted = require 'nnscaler.sorted'
  local fields = { 'gradients', 'weights', 'initial', 'buffers' }
  local text = ''
  if trial then
    local plain = { steps = trial.steps, names = trial.names, lr = trial.lr, tensors = {} }
    for _, field in ipairs(fields) do
      for name, x in sorted.sorted_pairs(trial[field]) do
        table.insert(plain.tensors,
          { field = field, name = name, shape = x.shape, dtype = x.dtype })
      end
    end
    text = base.json_encode(plain)
  end
  local plain = base.json_decode(group:exchange(text)[1])
  local out = { steps = plain.steps, names = plain.names, lr = plain.lr }
  for _, field in ipairs(fields) do out[field] = {} end
  for _, t in ipairs(plain.tensors) do
    local x = trial and trial[t.field][t.name] or tensor.empty(t.shape, { dtype = t.dtype })
    out[t.field][t.name] = group:broadcast(x, 0)
  end
  return out
end

return M
