--- A run on fewer ranks than its job says: fewer scale units share the same steps.
local fail = require 'nnscaler.fail'
local batches = require 'nnscaler.trainer.batches'
local log = require 'nnscaler.log'
local options = require 'nnscaler.options'
local sorted = require 'nnscaler.sorted'

local M = {}

-- Numbers of scale units that share the micro-batches of a step evenly, as words.
local function divisors(count, least, most)
  local list = {}
  for n = least, most do
    if count % n == 0 then list[#list + 1] = tostring(n) end
  end
  return table.concat(list, ', ')
end

--- Changes a job to the ranks that there are, where it lets them be fewer (elastic.min_units).
--- Steps keep their samples: scale units take more micro-batches each.
---@param job nnscaler.Job
---@param size integer ranks of the run
function M.fit(job, size)
  local least, config = (job.elastic or {}).min_units, job.compute_config or {}
  local whole = config.runtime_ngpus
  if not least then return end
  if not whole then
    fail('usage', 'trainer.elastic', 'elastic.min_units is set, but compute_config.runtime_ngpus '
      .. 'is not; expected the ranks of a whole run there')
  end
  if size >= whole then return end
  local plan = options.sizes_of(job, whole).plan_ngpus
  local units, all = size / plan, whole / plan
  if units % 1 ~= 0 or units < least then
    fail('usage', 'trainer.elastic', ('the run has %d of %d ranks; expected %d or more scale units '
      .. '(elastic.min_units) of %d rank(s) each'):format(size, whole, least, plan),
      ('start %d ranks or more%s'):format(least * plan, plan > 1 and ', a multiple of ' .. plan
      or ''))
  end
  local accumulation = batches.accumulation(job, all)
  local count = accumulation * all
  if count % units ~= 0 then
    fail('usage', 'trainer.elastic', ('a step has %d micro-batches, which %d scale units cannot '
      .. 'share evenly'):format(count, units), ('start as many ranks as make %s scale units')
      :format(divisors(count, least, all)))
  end
  log.logger('nnscaler.trainer').info('%d of %d scale units: each takes %d micro-batches of a step '
    .. 'instead of %d.', units, all, count / units, accumulation)
  job.compute_config = sorted.with(config, { runtime_ngpus = size,
    plan_ngpus = not options.is_open(job) and plan or nil })
  job.global_batch_size, job.grad_accumulation_steps = count * job.micro_batch_size, nil
  if (job.pas_config or {}).pipeline_nmicros then
    job.pas_config = sorted.with(job.pas_config, { pipeline_nmicros = count / units })
  end
end

return M
