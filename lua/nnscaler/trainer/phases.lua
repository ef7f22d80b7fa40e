--- What a training step takes of a rank's memory, phase by phase, before anything runs: at the end
--- of a forward, until all gradients are there, and in the step of the optimizer.
local optim = require 'nnscaler.optim'
local precision = require 'nnscaler.precision'
local sample_of = require 'nnscaler.runtime.sample'
local shards = require 'nnscaler.runtime.shards'
local slots = require 'nnscaler.optim.slots'
local units = require 'nnscaler.units'

local M = {}

---@class nnscaler.trainer.MemoryPhase bytes of the device in a phase of a step
---@field gradients integer
---@field activations integer with messages, results and weights that are gathered for use
---@field samples integer micro-batches of the step, those that loaders make ahead, and scalars
---@field workspace integer what sums, gathers and the optimizer take for a while
---@field total integer with what rests: weights, buffers, constants, the optimizer's state

---@class nnscaler.trainer.Memory bytes of a rank
---@field parameters integer
---@field gradients integer
---@field optimizer integer
---@field saved integer by a micro-batch in one stage, for its backward
---@field peak integer of activations, at most
---@field in_flight integer micro-batches that these are of
---@field buffers integer
---@field constants integer
---@field host integer what rests in memory of the host, states and activations
---@field phases table<string, nnscaler.trainer.MemoryPhase> forward: at the end of one; backward:
---  until all gradients are there; step: sums, norm, clip, update
---@field phase string the one that takes most
---@field total integer of the device at most, of that phase

-- Of what is alive beside tensors with a name: seeds, counts and weights of micro-batches, until
-- the collector has met them.
local kScalars = 1024

--- Bytes of the tensors of a micro-batch.
---@param sample any
---@return integer
function M.sample_bytes(sample)
  local total = 0
  sample_of.map(sample, function(x)
    total = total + x:numel() * slots.width[x.dtype]
    return x
  end)
  return total
end

-- The order in which a rank runs the parts of a step; with one stage all micro-batches alike.
local function order_of(program, micro_batches)
  local order, last, all = (program:schedule()), 0, {}
  for _, action in ipairs(order) do last = math.max(last, action.micro) end
  if #order == 0 then
    for i, segment in ipairs(program:segments()) do
      order[i] = { kind = segment.kind, stage = segment.stage, micro = 0 }
    end
  end
  if last > 0 or micro_batches == 1 then return order end
  for _ = 1, micro_batches do
    for _, action in ipairs(order) do all[#all + 1] = action end
  end
  return all
end

-- What a step does with the gradients and weights of a set: bytes that its scatter, its update and
-- its gather take for a while, and what less of gradients there is once they are scattered.
local function of_set(set, leaves, rank, on_host)
  local out = { scatter = 0, update = 0, gather = 0, less = 0 }
  if not (shards.cuts(set) or set.scatter) then return out end
  local function bytes(leaf, i, dtype)
    local total = slots.width[dtype]
    for d, size in ipairs(leaf.shape) do
      if d == leaf.dim + 1 then size = select(2, shards.range(leaf, i)) end
      total = total * size
    end
    return total
  end
  local chunk, gradient_chunk, whole, strided = 0, 0, 0, 0
  for i = 1, #set.over do
    local weights, gradients = 0, 0
    for _, name in ipairs(set.names) do
      local leaf = leaves[name]
      local dtype = leaf.gradient_dtype or precision.gradient_dtype(leaf.dtype)
      weights, gradients = weights + bytes(leaf, i, leaf.dtype), gradients + bytes(leaf, i, dtype)
      if set.over[i] == rank and leaf.dim > 0 and not leaf.owner then
        -- Copies of weights, and of gradients that lie whole.
        strided = strided + bytes(leaf, i, leaf.dtype)
        if not set.scatter and not leaf.gradient then strided = strided + bytes(leaf, i, dtype) end
      end
    end
    chunk, gradient_chunk = math.max(chunk, weights), math.max(gradient_chunk, gradients)
    whole = whole + gradients
  end
  if set.scatter then
    -- Packed by rank, what all ranks send, and the sum of this one's.
    out.scatter = (2 * #set.over + 1) * gradient_chunk
    out.less = whole - gradient_chunk
  end
  if shards.cuts(set) then
    out.gather = (#set.over + 1) * chunk
    out.update = on_host.slots and 0 or strided
  end
  return out
end

local function phase(rest, of, samples, workspace)
  return { activations = of.activations, gradients = of.gradients, samples = samples,
    workspace = workspace, total = rest + of.activations + of.gradients + samples + workspace }
end

-- What a step takes phase by phase.
local function add_phases(memory, program, rank, optimizer, settings)
  local on_host = settings.on_host
  local rest = memory.parameters + memory.buffers + memory.constants
    + (on_host.slots and 0 or memory.optimizer)
  local told = program:phases(order_of(program, settings.micro_batches), on_host.gradients)
  local leaves, most, sums = {}, { update = 0, gather = 0, less = 0 }, 0
  for _, leaf in ipairs(program:parameters()) do leaves[leaf.name] = leaf end
  for _, set in ipairs(program:sets()) do
    local one = of_set(set, leaves, rank, on_host)
    most.update = math.max(most.update, one.update + slots.workspace(optimizer, set.names))
    most.gather, most.less = math.max(most.gather, one.gather), most.less + one.less
    sums = math.max(sums, one.scatter)
  end
  local samples = settings.samples + kScalars
  local after = { activations = told.step.activations,
    gradients = told.step.gradients - (on_host.gradients and 0 or most.less) }
  local summing = told.step.activations + told.step.gradients + sums
  local backward = phase(rest, told.backward, samples, 0)
  if summing > told.backward.activations + told.backward.gradients then
    backward = phase(rest, told.step, samples, sums)
  end
  memory.phases = {
    forward = phase(rest, told.forward, samples, 0), backward = backward,
    step = phase(rest, after, samples, math.max(most.gather, most.update)),
  }
  memory.phase, memory.total = 'forward', memory.phases.forward.total
  for _, name in ipairs { 'backward', 'step' } do
    if memory.phases[name].total > memory.total then
      memory.phase, memory.total = name, memory.phases[name].total
    end
  end
end

---@class nnscaler.trainer.MemorySettings
---@field names string[] of the model's parameters
---@field on_host { slots: boolean, gradients: boolean } what rests in memory of the host
---@field micro_batches integer of a unit, a step
---@field samples integer bytes of those that are there at one time: of a step, and what worker
---  threads make ahead

-- Bytes of the samples that are there at one time: of a step, and what worker threads make ahead.
local function samples_of(job, micro_batches, sample)
  local workers = (job.dataloader or {}).train_args or {}
  return sample * (micro_batches + (workers.num_workers or 0) * (workers.prefetch or 2))
end

--- Bytes of samples and scalars of a step.
---@param job nnscaler.Job
---@param sample integer bytes of a micro-batch
---@param micro_batches integer of a unit, a step
---@return integer
function M.beside(job, sample, micro_batches)
  return samples_of(job, micro_batches, sample) + kScalars
end

--- What the memory of a job's programs depends on beside them.
---@param job nnscaler.Job
---@param source nnscaler.Source of the model
---@param options nnscaler.Options
---@param micro_batches integer of a unit, a step
---@param sample integer bytes of a micro-batch
---@return nnscaler.trainer.MemorySettings
function M.settings(job, source, options, micro_batches, sample)
  local names = {}
  for i, entry in ipairs(source:named_parameters()) do names[i] = entry.name end
  return { names = names, on_host = options.zero.on_host, micro_batches = micro_batches,
    samples = samples_of(job, micro_batches, sample) }
end

--- Memory of a program, with what the optimizer will keep of the parameters of the model.
---@param optimizer table of the job
---@param program nnscaler.Program
---@param rank integer
---@param settings nnscaler.trainer.MemorySettings
---@return nnscaler.trainer.Memory
function M.of(optimizer, program, rank, settings)
  local memory, parameters, kept = program:memory((program:schedule())), {}, {}
  local on_host = settings.on_host
  for _, leaf in ipairs(program:parameters()) do
    local slice = leaf.addends > 0 and shards.slice(leaf, rank)
    kept[leaf.name] = slice and { shape = slice.shape, dtype = leaf.dtype } or nil
  end
  for i, name in ipairs(settings.names) do
    parameters[i] = { name = name, data = kept[name], requires_grad = kept[name] ~= nil }
  end
  local made = optim.new(optimizer, parameters)
  memory.optimizer = slots.bytes(made)
  memory.host = memory.host + (on_host.slots and memory.optimizer or 0)
    + (on_host.gradients and memory.gradients or 0)
  add_phases(memory, program, rank, made, settings)
  return memory
end

--- Bytes by kind in the phase that takes most, in words.
---@param m nnscaler.trainer.Memory
---@return string
function M.kinds(m)
  local of = m.phases[m.phase]
  local parts = {}
  local function part(what, bytes)
    if bytes > 0 then parts[#parts + 1] = what .. ' ' .. units.bytes(bytes) end
  end
  part('weights', m.parameters)
  part('gradients', of.gradients)
  part('optimizer', m.optimizer)
  part(('activations of %d micro-batch(es)'):format(m.in_flight), of.activations)
  part('samples', of.samples)
  part('sums and updates', of.workspace)
  part('buffers and constants', m.buffers + m.constants)
  return ('in %s: %s'):format(m.phase, table.concat(parts, ', '))
end

return M
