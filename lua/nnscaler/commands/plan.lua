--- `nnscaler plan`: shows the plan of a job and the time line of its schedule.
local autodist = require 'nnscaler.policies.autodist'
local base = require 'nnscaler._C.base'
local chrome_trace = require 'nnscaler.commands.chrome_trace'
local compare = require 'nnscaler.commands.compare'
local explain = require 'nnscaler.explain'
local fail = require 'nnscaler.fail'
local format = require 'nnscaler.format'
local html = require 'nnscaler.commands.html'
local options = require 'nnscaler.options'
local parts = require 'nnscaler.trainer.parts'
local pipeline = require 'nnscaler.pipeline'
local plan_diff = require 'nnscaler.commands.plan_diff'
local plans = require 'nnscaler._C.plan'
local policies = require 'nnscaler.policies'
local run = require 'nnscaler.commands.run'
local sample_of = require 'nnscaler.runtime.sample'
local setup = require 'nnscaler.trainer.setup'
local sources = require 'nnscaler.source'
local timeline = require 'nnscaler.plot.timeline'
local trainer = require 'nnscaler.trainer'
local units = require 'nnscaler.units'
local why = require 'nnscaler.commands.why'
local width = require 'nnscaler.trainer.width'

local M = {}

---@class nnscaler.plan.Opts
---@field job string path
---@field changes string[]
---@field world? integer
---@field hardware? string
---@field plan_out? string
---@field trace? string
---@field diff? string
---@field html? string
---@field why? string
---@field sweep? string
---@field log_level? string

--- Makes the plan of a job for the shapes of its first training sample, with no ranks. Under
--- autodist, and where hardware is named, it is compared with other plans.
---@param job nnscaler.Job
---@param world integer|nil
---@param hardware string|nil
---@return nnscaler.Pipeline with the plan
---@return string|nil comparison
---@return nnscaler.Explained what its report is made from
function M.make(job, world, hardware)
  local config = job.compute_config or {}
  width.keep_to_limit(job)
  local t = trainer.new(job)
  local chosen = options.of(job, config.runtime_ngpus or world or config.plan_ngpus
    or policies.devices(job.pas_policy) or 1)
  local first = width.open(job) and width.first(job, chosen.runtime_ngpus) or chosen.plan_ngpus
  t.units = chosen.runtime_ngpus / first
  parts.refuse(t.args, 'plan.parts')
  chosen.micro_batches = setup.parts(t, t.units)
  local args, n = sample_of.arguments(job, setup.first_sample(t))
  args.n = n
  local line = pipeline.new(sources.of(t.model), chosen)
  local graph = line:graph(args, true)
  local text
  if hardware or chosen.policy == 'autodist' then
    chosen.hardware = hardware
    local found = compare.plans(job, line.source, chosen, graph)
    line, text = found.best.line, compare.text(found)
  else
    line:use_plan(graph, line:ask_policy(graph))
  end
  return line, text, explain.of(line, graph)
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

-- The numbers of 'world=8,64,512'.
local function worlds(text)
  local list = {}
  local numbers = text:match '^world=([%d,]+)$'
  for number in (numbers or ''):gmatch '[^,]+' do list[#list + 1] = tonumber(number) end
  for _, n in ipairs(list) do
    if n < 1 then list = {} end
  end
  if #list == 0 then
    fail('usage', 'plan.sweep', ("--sweep is '%s'; expected numbers of ranks"):format(text),
      '--sweep world=8,64,512')
  end
  return list
end

--- How a step and its cost grow with the number of ranks: a line for each.
---@param opts nnscaler.plan.Opts
---@return integer
function M.sweep(opts)
  local list = worlds(opts.sweep)
  print(('%6s %8s %6s %6s %12s %12s %12s %14s'):format('ranks', 'devices', 'units', 'micro', 'step',
    'memory', 'samples/s', 'planned in'))
  for _, world in ipairs(list) do
    local start = base.clock()
    local job = run.load(opts)
    local ok, line, _, e = pcall(M.make, job, world, opts.hardware)
    if ok then
      local info, cost = line.plan:info(), e.account
      local n = info.runtime_ngpus / info.plan_ngpus
      local micro = e.settings.micro_batches or 1
      print(('%6d %8d %6d %6d %12s %12s %12.4g %12.2f s'):format(info.runtime_ngpus,
        info.plan_ngpus, n, micro, format.seconds(cost.seconds), units.bytes(cost.total),
        n * micro * job.micro_batch_size / cost.seconds, base.clock() - start))
    else
      local err = line
      if type(err) ~= 'table' or err.kind ~= 'plan' and err.kind ~= 'usage' then error(err, 0) end
      print(('%6d   %s'):format(world, (err.message:match '^[^\n]*')))
    end
  end
  return 0
end

--- Has this machine measured where a plan is for it; the hardware that the plan is then for.
---@param opts { job: string, changes: string[], hardware?: string }
---@param job nnscaler.Job
---@param world integer|nil
---@return string|nil hardware
function M.filled(opts, job, world)
  local named = opts.hardware or (job.pas_config or {}).hardware
  if named ~= 'measured' then return opts.hardware end
  local measured = require('nnscaler.commands.missing').fill(opts, job, world or 1)
  return measured and opts.hardware or not measured and 'cpu' or nil
end

--- Prints plan and schedule; returns the exit code.
---@param opts nnscaler.plan.Opts
---@return integer
function M.run(opts)
  if opts.sweep then return M.sweep(opts) end
  local other = opts.diff and plans.from_json(base.file_read(opts.diff, 'plan.diff'))
  local job = run.load(opts)
  local hardware = M.filled(opts, job, opts.world)
  local ok, line, comparison, priced = pcall(M.make, job, opts.world, hardware)
  if not ok then
    local relax = require 'nnscaler.commands.relax'
    if autodist.lacks_memory(line) then
      line.hint = (line.hint and line.hint .. '; ' or '') .. relax.text(opts, opts.world or 1,
        hardware)
    end
    error(line, 0)
  end
  local plan = line.plan
  if opts.why then
    print(why.text(priced, opts.why))
    return 0
  end
  local report = explain.text(priced)
  if comparison then print(comparison) end
  print(report)
  print ''
  print(explain.plan(plan))
  if #plan:info().stages > 1 then print(M.schedule(plan)) end
  local compared, classes = line:check(line.first_graph, plan)
  if compared then
    print 'programs of all ranks: checked'
  else
    print(('programs of %d ranks in %d classes: that of each class checked'):format(
      plan:info().runtime_ngpus, #classes))
  end
  if other then
    local text = plan_diff.text(other, plan)
    print(text and ('differences, - %s, + this plan:\n%s'):format(opts.diff, text)
      or ('no differences from %s'):format(opts.diff))
  end
  if opts.html then
    base.file_write(opts.html, html.page(priced, comparison, report), 'plan.html')
    print(('report written to %s'):format(opts.html))
  end
  if opts.trace then
    base.file_write(opts.trace, chrome_trace.json(priced.account, job.name or 'job'), 'plan.trace')
    print(('trace of the predicted step written to %s'):format(opts.trace))
  end
  if opts.plan_out then
    base.file_write(opts.plan_out, policies.text_for(plan, priced.settings.hardware),
      'plan.write')
    print(('plan written to %s'):format(opts.plan_out))
  end
  return 0
end

--- Prints the parameters of a recipe.
M.help = run.help

return M
