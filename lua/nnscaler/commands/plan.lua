--- `nnscaler plan`: shows the plan of a job and the time line of its schedule.
local base = require 'nnscaler._C.base'
local compare = require 'nnscaler.commands.compare'
local options = require 'nnscaler.options'
local parts = require 'nnscaler.trainer.parts'
local pipeline = require 'nnscaler.pipeline'
local policies = require 'nnscaler.policies'
local run = require 'nnscaler.commands.run'
local sample_of = require 'nnscaler.runtime.sample'
local setup = require 'nnscaler.trainer.setup'
local sources = require 'nnscaler.source'
local timeline = require 'nnscaler.plot.timeline'
local trainer = require 'nnscaler.trainer'

local M = {}

---@class nnscaler.plan.Opts
---@field job string path
---@field changes string[]
---@field world? integer
---@field hardware? string
---@field plan_out? string
---@field log_level? string

--- Makes the plan of a job for the shapes of its first training sample, with no ranks. Under
--- autodist, and where hardware is named, it is compared with other plans.
---@param job nnscaler.Job
---@param world integer|nil
---@param hardware string|nil
---@return nnscaler.Pipeline with the plan
---@return string|nil comparison
function M.make(job, world, hardware)
  local config = job.compute_config or {}
  local t = trainer.new(job)
  local chosen = options.of(job, config.runtime_ngpus or world or config.plan_ngpus
    or policies.devices(job.pas_policy) or 1)
  t.units = chosen.runtime_ngpus / chosen.plan_ngpus
  parts.refuse(t.args, 'plan.parts')
  chosen.micro_batches = setup.parts(t, t.units)
  local args, n = sample_of.arguments(job, setup.first_sample(t))
  args.n = n
  local line = pipeline.new(sources.of(t.model), chosen)
  local graph = line:graph(args, true)
  if hardware or chosen.policy == 'autodist' then
    chosen.hardware = hardware
    local found = compare.plans(job, line.source, chosen, graph)
    return found.best.line, compare.text(found)
  end
  line:use_plan(graph, line:ask_policy(graph))
  return line
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
  local line, comparison = M.make(job, opts.world, opts.hardware)
  local plan = line.plan
  if comparison then print(comparison) end
  print((plan:text():gsub('\n$', '')))
  if #plan:info().stages > 1 then print(M.schedule(plan)) end
  local compared, classes = line:check(line.first_graph, plan)
  if compared then
    print 'programs of all ranks: checked'
  else
    print(('programs of %d ranks in %d classes: that of each class checked'):format(
      plan:info().runtime_ngpus, #classes))
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
