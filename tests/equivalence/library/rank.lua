--- What each rank of the library matrix runs: a hand-written loop on one device with LibTorch's
--- autograd, the same loop with parallel modules, and the comparison after every step.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local models = require 'tests.equivalence.library.models'
local nnscaler = require 'nnscaler'
local optim = require 'nnscaler.optim'

local kSteps, kMax = 3, 0.5

-- Losses, norms and the weights at the end of the loop on one device.
local function reference(case, model, batches)
  model:materialize(5)
  local parameters, out = {}, {}
  for i, entry in ipairs(model:named_parameters()) do
    parameters[i] = { name = entry.name, data = entry.param, requires_grad = true }
  end
  local optimizer = optim.new({ type = case.optimizer, args = { lr = 0.05 } }, parameters)
  local by_name = {}
  for _, p in ipairs(parameters) do by_name[p.name] = p.data end
  for _, entry in ipairs(model:named_buffers()) do by_name[entry.name] = entry.buffer end
  for step, batch in ipairs(batches) do
    local losses = {}
    for _, p in ipairs(parameters) do p.data.grad = nil end
    for k, sample in ipairs(batch) do
      nnscaler.set_random { seed = 7, step = step - 1, micro = k - 1 }
      local loss = models[case.model].loss(model, sample)
      losses[k] = loss:item()
      loss:backward()
    end
    optimizer:collect(function(name) return by_name[name].grad end)
    local norm = optimizer:scale(1 / #batch)
    optimizer:clip(norm, kMax)
    optimizer:step(0.05)
    out[step] = { losses = losses, norm = norm }
  end
  return out, by_name
end

-- Micro-batches of this rank's unit: k of the step belongs to unit k mod U.
local function parallel(case, model, batches, units, unit)
  model:materialize(5)
  local optimizer = nnscaler.build_optimizer(model, case.optimizer, { lr = 0.05 })
  local out = {}
  for step, batch in ipairs(batches) do
    model:train()
    optimizer:zero_grad()
    local losses, mine = {}, {}
    for k = unit + 1, #batch, units do mine[#mine + 1] = k end
    if models[case.model].end2end then
      nnscaler.set_random { seed = 7 }
      local samples = {}
      for i, k in ipairs(mine) do samples[i] = batch[k] end
      for i, output in ipairs(model:train_step(samples)) do losses[mine[i]] = output[1]:item() end
    else
      for _, k in ipairs(mine) do
        nnscaler.set_random { seed = 7, micro = k - 1 }
        local loss = models[case.model].loss(model, batch[k])
        losses[k] = loss:item()
        loss:backward()
      end
    end
    optimizer:sync_shard_grad()
    optimizer:scale_grads(1 / #batch)
    local norm = optimizer:clip_gnorm(kMax)
    optimizer:step()
    out[step] = { losses = losses, norm = norm }
  end
  return out
end

local function part(whole, parameter)
  for d, start in ipairs(parameter.start or {}) do
    whole = whole:narrow(d - 1, start, parameter.shape[d])
  end
  return whole
end

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'warning'
  local generator, batches = T.generator(11), {}
  for step = 1, kSteps do
    batches[step] = {}
    for k = 1, case.micro_batches do
      batches[step][k] = models[case.model].sample(generator)
    end
  end
  local want, weights = reference(case, models[case.model].plain(), batches)
  local config = case.zero or {}
  config.plan_ngpus, config.runtime_ngpus, config.pas_config = case.plan, case.world,
    case.pas_config
  local model = models[case.model].parallel(case.policy, config)
  local units, rank = case.world / case.plan, comm.current():rank()
  local got = parallel(case, model, batches, units, math.floor(rank / case.plan))

  local worst, where, cut, losses = 0, 'nothing', 0, 0
  local function note(d, what)
    if d > worst or d ~= d then worst, where = d, what end
  end
  for step = 1, kSteps do
    for k = 1, case.micro_batches do
      local loss = got[step].losses[k]
      if loss then
        losses = losses + 1
        note(math.abs(loss - want[step].losses[k]) / math.abs(want[step].losses[k]),
          ('loss %d of step %d'):format(k, step))
      end
    end
    note(math.abs(got[step].norm - want[step].norm) / want[step].norm, 'norm of step ' .. step)
  end
  assert(losses == kSteps * case.micro_batches / units, 'a micro-batch of this unit has no loss')
  local function compare(name, leaf)
    local whole = part(weights[name].data, leaf)
    if leaf:numel() < weights[name]:numel() then cut = cut + 1 end
    if not whole:is_floating_point() then
      note(leaf.data:equal(whole) and 0 or math.huge, name)
    elseif whole:numel() > 0 then
      note((leaf.data - whole):norm():item() / whole:norm():item(), name)
    end
  end
  for _, entry in ipairs(model:named_parameters()) do compare(entry.name, entry.param) end
  for _, entry in ipairs(model:named_buffers()) do compare(entry.name, entry.buffer) end
  return base.json_encode { worst = worst, where = where, cut = cut }
end
