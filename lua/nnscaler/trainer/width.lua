--- How many devices a plan spans where a job under autodist does not say: one where a whole step
--- surely fits on each, which is data parallelism, else the fewest with which there is a plan.
--- Steps keep their samples whatever is chosen: what is learnt does not depend on the machine.
local autodist = require 'nnscaler.policies.autodist'
local base = require 'nnscaler._C.base'
local batches = require 'nnscaler.trainer.batches'
local options = require 'nnscaler.options'
local parts = require 'nnscaler.trainer.parts'
local phases = require 'nnscaler.trainer.phases'
local pipeline = require 'nnscaler.pipeline'
local precision = require 'nnscaler.precision'
local sample_of = require 'nnscaler.runtime.sample'
local slots = require 'nnscaler.optim.slots'
local sorted = require 'nnscaler.sorted'
local sources = require 'nnscaler.source'
local units = require 'nnscaler.units'

local M = {}

local kMargin = 0.8 -- of the memory of a machine: ranks have more than tensors

---@class nnscaler.trainer.Width what was chosen
---@field plain boolean whether every device has all of the model, which is policy dp
---@field devices integer of a plan
---@field gib? number of a device that plans may take, where the job does not say it
---@field samples integer of a step
---@field told string why, in words

--- Whether the number of devices is to be chosen.
---@param job nnscaler.Job
---@return boolean
function M.open(job)
  return options.is_open(job) and not job.eager and not parts.of(job)
end

-- Micro-batches of a scale unit, a step; nil where units cannot share a step evenly.
local function micro_batches(job, size, width)
  local each = batches.samples(job, size) * width / size / job.micro_batch_size
  local told = job.global_batch_size and job.grad_accumulation_steps
  if each < 1 or each % 1 ~= 0 or told and told ~= each then return nil end
  return each
end

-- Numbers of devices that a plan may have, the fewest first.
local function widths(job, size)
  local list, ranks = {}, (job.pas_config or {}).pipeline_nstages or 1
  for width = 1, size do
    local fits = size % width == 0 and (ranks == 'auto' or width % ranks == 0)
    if fits and micro_batches(job, size, width) then list[#list + 1] = width end
  end
  return #list > 0 and list or { 1 }
end

local function set_devices(job, width)
  job.compute_config = sorted.with(job.compute_config, { plan_ngpus = width })
end

--- The fewest devices of a plan that an open job's batch and stages allow.
---@param job nnscaler.Job
---@param size integer ranks
---@return integer
function M.first(job, size) return widths(job, size)[1] end

--- Gives an open job the fewest devices, to begin with.
---@param job nnscaler.Job
---@param size integer ranks
function M.begin(job, size)
  local first = M.first(job, size)
  if first > 1 then set_devices(job, first) end
end

-- More bytes than a step on one device can take: of every weight its gradient, its states and what
-- their update takes for a while; of every value itself, its gradient and what its operator keeps.
local function bound(graph, job, sample, micro)
  local state = autodist.settings(graph, { optimizer = job.optimizer, pas_config = {} }).state or 0
  local total = phases.beside(job, sample, micro)
  for _, value in ipairs(graph:values()) do
    local bytes = slots.tensor_bytes(value.shape, value.dtype)
    if value.role == 'parameter' then
      local gradient = slots.tensor_bytes(value.shape, precision.gradient_dtype(value.dtype))
      total = total + bytes * (1 + state) + 3 * gradient
    else
      total = total + 3 * bytes
    end
  end
  return total
end

-- Whether a job says itself what plans may take of a device.
local function is_told(config)
  return config.hardware or (config.mem_constraint or -1) ~= -1
end

--- Has plans under autodist keep to the memory that the job allows a rank.
---@param job nnscaler.Job
function M.keep_to_limit(job)
  local gb = (job.compute_config or {}).memory_gb
  if job.pas_policy ~= 'autodist' or not gb then return end
  if ((job.pas_config or {}).mem_constraint or -1) ~= -1 then return end
  job.pas_config = sorted.with(job.pas_config, { mem_constraint = gb })
end

-- What plans may take of a device, and what of it a settled job has to be told; nil: nobody knows.
local function limit_of(job, there)
  local config = job.pas_config or {}
  if is_told(config) then
    return autodist.memory { pas_config = config }
  elseif there then
    return kMargin * there, kMargin * there / 2 ^ 30
  end
end

-- A job of so many devices a plan.
local function settled(job, chosen)
  local out = setmetatable({}, { __index = job })
  M.apply(out, chosen)
  return out
end

local function line_of(job, source, size, chosen, micro)
  local all = options.of(settled(job, chosen), size)
  all.micro_batches = micro
  return pipeline.new(source, all)
end

-- The fewest devices with which there is a plan: the one of written files, else of the policy.
local function search(job, size, source, graph, key, chosen, beat)
  local list = widths(job, size)
  local function try(ask)
    for _, width in ipairs(list) do
      chosen.devices = width
      if ask(line_of(job, source, size, chosen, micro_batches(job, size, width) or 1)) then
        return true
      end
    end
  end
  if try(function(line) return line:plan_of_before(graph, key) end) then return end
  local why
  if try(function(line)
    local ok, err = pcall(line.ask_policy, line, graph, beat)
    if not ok and not autodist.lacks_memory(err) then error(err, 0) end
    why = err
    return ok
  end) then return end
  why.hint = ('more ranks, a smaller micro_batch_size or precision=bf16 take less on a device; '
    .. 'what would fit, and how much it takes: nnscaler plan with --world %d'):format(size)
  error(why, 0)
end

--- Changes a job to what was chosen.
---@param job nnscaler.Job
---@param chosen nnscaler.trainer.Width
function M.apply(job, chosen)
  if chosen.plain then
    local config = sorted.with(job.pas_config, {})
    for key in sorted.sorted_pairs(autodist.keys) do config[key] = nil end
    job.pas_policy, job.pas_config = 'dp', config
    return
  end
  set_devices(job, chosen.devices)
  if chosen.gib then
    job.pas_config = sorted.with(job.pas_config, { mem_constraint = chosen.gib })
  end
  if not job.global_batch_size and chosen.devices > 1 then
    job.global_batch_size, job.grad_accumulation_steps = chosen.samples, nil
  end
end

--- Chooses for a job whose model and data are made for the first number of devices.
---@param t nnscaler.Trainer
---@param size integer ranks
---@param there number|nil bytes of memory that each rank may count on
---@param sample any the first micro-batch
---@param shared nnscaler.Sharing|nil the ranks that choose at one time: rank 0 does, for all
---@return nnscaler.trainer.Width
function M.choose(t, size, there, sample, shared)
  local job, source = t.args, sources.of(t.model)
  local args, n = sample_of.arguments(job, sample)
  args.n = n
  local graph = source:ahead(args, true)
  local function work(beat)
    local limit, gib = limit_of(job, there)
    local first = widths(job, size)[1]
    local most = limit and bound(graph, job, phases.sample_bytes(sample),
      micro_batches(job, size, first) or 1)
    local constrained = (job.pas_config or {}).partition_constraints_path ~= nil -- to be checked
    local chosen = { plain = first == 1 and not constrained and (not limit or most <= limit),
      devices = 1, gib = gib, samples = batches.samples(job, size) }
    if chosen.plain then
      chosen.told = 'a whole step fits on each device' .. (limit and (' (less than %s of %s)')
        :format(units.bytes(most), units.bytes(limit)) or ', as far as is known')
    else
      search(job, size, source, graph, source:key(args, true), chosen, beat)
      chosen.told = ('%d device(s) a plan, the fewest that fit in %s a device'):format(
        chosen.devices, units.bytes(limit or autodist.memory { pas_config = job.pas_config }))
    end
    return base.json_encode(chosen)
  end
  local text = shared and shared:of_rank_zero(work) or work()
  return base.json_decode(text)
end

return M
