--- What `nnscaler diff` is tested on: a small GPT, plans of it, and their generated programs, into
--- which faults are planted. One device is recorded once, and each plan is compared with that.
local shell = require 'tests.cli.support.shell'

local M = {}

--- A job of 8 samples a step.
M.job = 'recipes/nanogpt.lua preset=tiny layers=2 width=16 heads=2 block=8 dropout=0.1 '
  .. 'micro_batch_size=4 global_batch_size=8'

local zero = 'pas_policy=dp compute_config.runtime_ngpus=2 compute_config.use_zero=%d'

--- Changes of the job, by the name of the plan.
M.plans = {
  one = 'pas_policy=dp',
  dp = 'pas_policy=dp compute_config.runtime_ngpus=2',
  data = 'pas_policy=data compute_config.plan_ngpus=2',
  tp = 'pas_policy=tp compute_config.plan_ngpus=2',
  megatron = 'pas_policy=megatron compute_config.plan_ngpus=2',
  pp = 'pas_policy=pp compute_config.plan_ngpus=2',
  interleaved = 'pas_policy=pp compute_config.plan_ngpus=2 '
    .. 'pas_config.pipeline_scheduler=1f1b_interleaved pas_config.pipeline_chunks=2',
  fsdp = 'pas_policy=fsdp compute_config.runtime_ngpus=2',
  zero1 = zero:format(1),
  zero2 = zero:format(2),
  hybrid = 'pas_policy=hybrid compute_config.plan_ngpus=4',
  recompute = "pas_policy=dp pas_config.recompute_modules='transformer.h.*'",
}

--- Compares two sides: jobs of these plans, or recordings.
---@param a string changes of A
---@param b string changes of B
---@param more? string
---@return string said, integer code
function M.of_plans(a, b, more)
  local function changes(letter, text)
    return (text:gsub('%S+', ('--%s %%0'):format(letter)))
  end
  return shell.nnscaler(('diff %s %s %s %s'):format(M.job, changes('a', a), changes('b', b),
    more or '--steps 1'))
end

--- Records one device.
---@param folder string
function M.record(folder)
  local said, code = shell.nnscaler(('run %s %s precision=fp64 stop_after_steps=2 max_val_steps=1 '
    .. 'checkpoint.no_save=true --record %s --record-steps 2'):format(M.job, M.plans.one, folder))
  assert(code == 0, said)
end

--- Compares a recording with a plan whose programs are in a folder, or are written there.
---@param recorded string
---@param plan string
---@param folder string
---@return string said, integer code
function M.with(recorded, plan, folder)
  return shell.nnscaler(('diff %s %s %s gen_savedir=%s'):format(recorded, M.job, M.plans[plan],
    folder))
end

return M
