--- `nnscaler plan`: shows the plan of a job and the time line of its schedule.
local base = require 'nnscaler._C.base'
local generate = require 'nnscaler.runtime.generate'
local lower = require 'nnscaler._C.lower'
local policies = require 'nnscaler.policies'
local run = require 'nnscaler.commands.run'
local sample_of = require 'nnscaler.runtime.sample'
local setup = require 'nnscaler.trainer.setup'
local sharing = require 'nnscaler.runtime.sharing'
local timeline = require 'nnscaler.plot.timeline'
local trace = require 'nnscaler.trace'
local trainer = require 'nnscaler.trainer'

local M = {}

---@class nnscaler.plan.Opts
---@field job string path
---@field changes string[]
---@field world? integer
---@field plan_out? string
---@field log_level? string

--- Makes the plan of a job for the shapes of its first training sample, with no ranks.
---@param job nnscaler.Job
---@param world integer|nil
---@return userdata plan, userdata graph
function M.make(job, world)
  local config = job.compute_config or {}
  local t = trainer.new(job)
  local size = config.runtime_ngpus or world or config.plan_ngpus
    or policies.devices(job.pas_policy) or 1
  local ranks = sharing.sizes(job, size)
  t.units = ranks.runtime_ngpus / ranks.plan_ngpus
  ranks.micro_batches = setup.parts(t, t.units)
  local args, n = sample_of.arguments(job, t.train_loader:get(0))
  args.n = n
  t.model:assign_paths()
  local graph = trace.trace(t.model, args, {
    training = true, arg_names = t.model.forward_arg_names,
  })
  return sharing.make_plan(graph, job, ranks), graph
end

--- The schedule of a plan, drawn, with a part of each kind taking one unit of time.
---@param plan userdata
---@return string
function M.schedule(plan)
  local info = plan:info()
  local lines = plan:time_line(info.micro_batches)
  local split = false
  for _, line in ipairs(lines) do
    for _, t in ipairs(line) do split = split or t.kind == 'W' end
  end
  local lengths = 'F = 1, B = 2 (gradients of activations and of weights)'
  if split then lengths = 'F = 1, B = 1 (gradients of activations), W = 1 (of weights)' end
  return ('schedule %s: %d stages on %d pipeline ranks, %d micro-batches; %s\n%s'):format(
    info.schedule, #info.stages, #lines, info.micro_batches, lengths, timeline.draw(lines))
end

--- Prints plan and schedule; returns the exit code.
---@param opts nnscaler.plan.Opts
---@return integer
function M.run(opts)
  local job = run.load(opts)
  local plan, graph = M.make(job, opts.world)
  print((plan:text():gsub('\n$', '')))
  if #plan:info().stages > 1 then print(M.schedule(plan)) end
  local checked = generate.check(plan, function(rank)
    return lower.lower(graph, { plan = plan, rank = rank, device = job.device })
  end)
  if checked then
    print 'programs of all ranks: checked'
  end
  if opts.plan_out then
    base.file_write(opts.plan_out, plan:json(), 'plan.write')
    print(('plan written to %s'):format(opts.plan_out))
  end
  return 0
end

--- Prints the parameters of a recipe.
M.help = run.help

return M
