--- What `nnscaler plan` tells of a plan, of any policy: the configuration, where figures come from,
--- the modules of the model by depth, the least memory, of each stage what takes its time and how
--- that is split, the predicted time line, memory by rank and kind, and bytes moved. Modules and
--- calls that repeat under numbers of a list are one line.
local base = require 'nnscaler._C.base'
local autodist = require 'nnscaler.policies.autodist'
local format = require 'nnscaler.format'
local memory = require 'nnscaler.explain.memory'
local modules = require 'nnscaler.explain.modules'
local options = require 'nnscaler.options'
local pipeline = require 'nnscaler.pipeline'
local solve = require 'nnscaler._C.solve'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local stages = require 'nnscaler.explain.stages'
local timeline = require 'nnscaler.plot.timeline'
local units = require 'nnscaler.units'

local M = {}

local kTop = 10 -- operators that were not measured
local kColumns = 60 -- of a time line

---@class nnscaler.Explained what a report is made from
---@field graph userdata nnscaler.Graph
---@field line nnscaler.Pipeline with the plan
---@field account nnscaler.StepAccount of the plan
---@field whole nnscaler.StepAccount of the model on one device, one micro-batch
---@field settings nnscaler.StepSettings that both were priced with
---@field planned table[] the plan's operators, by node

--- A line with a plan of what an engine runs: of a run without one, of the whole model on one
--- device.
---@param engine table with a program
---@return nnscaler.Pipeline line, userdata graph
function M.line_of(engine)
  local line = engine.pipeline
  if line.plan then return line, line.first_graph end
  local fields = {}
  for key, value in sorted_pairs(line.options) do fields[key] = value end
  fields.whole = false
  local alone = pipeline.new(line.source, options.new(fields))
  alone:use_plan(engine.graph, alone:ask_policy(engine.graph))
  return alone, engine.graph
end

--- What a report is made from: the plan, and the whole model on one device, on the same hardware.
---@param line nnscaler.Pipeline with a plan
---@param graph userdata nnscaler.Graph
---@return nnscaler.Explained
function M.of(line, graph)
  local settings = autodist.settings(graph, line:policy_config(graph))
  local fields = {}
  for key, value in sorted_pairs(line.options) do fields[key] = value end
  fields.policy, fields.pas_config, fields.plan_ngpus, fields.runtime_ngpus = 'dp', {}, 1, 1
  fields.micro_batches, fields.whole = 1, false
  local alone = pipeline.new(line.source, options.new(fields))
  alone:use_plan(graph, alone:ask_policy(graph))
  local once = {}
  for key, value in sorted_pairs(settings) do once[key] = value end
  once.micro_batches = 1
  return { graph = graph, line = line, settings = settings,
    account = line:account(graph, line.plan, settings),
    whole = alone:account(graph, alone.plan, once),
    planned = base.json_decode(line.plan:json()).ops }
end

-- Calls of which a profile knows nothing like them, by what the model says they take.
local function not_measured(e, add)
  local nodes, by_name, rows = e.graph:nodes(), {}, {}
  for _, rank in ipairs(e.account.ranks) do
    for _, spent in ipairs(rank.spent) do
      local node = nodes[spent.node + 1]
      local name = spent.op ~= '' and spent.op or node.op
      if spent.modelled > 0 then by_name[name] = (by_name[name] or 0) + spent.modelled end
    end
  end
  for name, seconds in sorted_pairs(by_name) do
    rows[#rows + 1] = { name = name, seconds = seconds }
  end
  modules.by_size(rows, 'seconds')
  local texts = {}
  for i = 1, math.min(kTop, #rows) do
    texts[i] = ('%s %s'):format(rows[i].name, format.seconds(rows[i].seconds))
  end
  if #texts > 0 then
    add('not measured, so modelled: %s%s', table.concat(texts, ', '), #rows > kTop
      and (' and %d more'):format(#rows - kTop) or '')
  end
end

local function configuration(e, add)
  local info, o = e.line.plan:info(), e.line.options
  local policy = type(o.policy) == 'string' and o.policy or 'function'
  local given = {}
  for key, value in sorted_pairs(o.pas_config or {}) do
    given[#given + 1] = ('%s=%s'):format(key, tostring(value))
  end
  add('configuration: policy %s%s; %d devices of a plan, %d ranks (%d units); %d stages, schedule '
    .. '%s, %d micro-batches; ZeRO %d; optimizer state %.3g bytes a byte of a weight', policy,
    #given > 0 and ' (' .. table.concat(given, ', ') .. ')' or '', info.plan_ngpus,
    info.runtime_ngpus, info.runtime_ngpus / info.plan_ngpus, #info.stages, info.schedule,
    e.settings.micro_batches or 1, info.zero, e.settings.state or 2)
  local on = solve.hardware(e.settings.hardware or 'cpu')
  local cost = e.account
  local all = math.max(cost.measured + cost.interpolated + cost.modelled, 1e-12)
  local sources = on.origin == 'modelled' and 'calls modelled, links modelled'
    or ('of the seconds of calls and links %.0f %% measured, %.0f %% interpolated, %.0f %% '
      .. 'modelled'):format(100 * cost.measured / all, 100 * cost.interpolated / all,
      100 * cost.modelled / all)
  add('cost sources: %s (hardware %s, %d devices a host, %s of memory a device)', sources, on.name,
    on.devices_per_host, units.bytes(on.memory))
  if on.origin ~= 'modelled' then not_measured(e, add) end
end

local function lower_bound(e, add)
  local weights, trained, buffers = 0, 0, 0
  for _, value in ipairs(e.graph:parameters()) do
    weights = weights + modules.bytes_of(value)
    if value.requires_grad then trained = trained + modules.bytes_of(value) end
  end
  for _, value in ipairs(e.graph:buffers()) do buffers = buffers + modules.bytes_of(value) end
  local ranks = e.line.plan:info().runtime_ngpus
  local state = trained * (e.settings.state or 2)
  add('param mem %s, gradients %s, optimizer %s, buff mem %s, activation mem %s (kept between '
    .. 'forward and backward on one device)', units.bytes(weights), units.bytes(trained),
    units.bytes(state), units.bytes(buffers), units.bytes(e.whole.saved))
  add('estimated minimum memory per device %s: weights, gradients and optimizer state in shards '
    .. 'over %d rank(s); no activations', units.bytes((weights + trained + state) / ranks), ranks)
end

-- What the policy tells of its search.
local function search(e, add)
  local notes = e.line.notes
  if notes then
    for _, note in ipairs(notes) do
      add('search: %s', type(note) == 'function' and note() or note)
    end
  elseif e.line.policies == 0 then
    add 'search: none, the plan is that of an earlier start'
  else
    add 'search: none, the policy says all of the plan'
  end
end

-- The predicted time line in columns of equal time, and its ends.
local function drawn(account, add)
  local last = 0
  for _, line in ipairs(account.line) do
    for _, t in ipairs(line) do last = math.max(last, t.stop) end
  end
  if #account.line > 1 and last > 0 then
    local column, lines = last / kColumns, {}
    for r, line in ipairs(account.line) do
      lines[r] = {}
      for i, t in ipairs(line) do
        lines[r][i] = { kind = t.kind, stage = t.stage, micro = t.micro,
          start = math.floor(t.start / column + 0.5), stop = math.floor(t.stop / column + 0.5) }
      end
    end
    add('predicted time line, one unit %s:', format.seconds(column))
    add('%s', timeline.draw(lines))
  end
  add('predicted step %s: parts %s (of a micro-batch forward %s, backward %s, of these '
    .. 'communication %s), sums of gradients %s, updates %s', format.seconds(account.seconds),
    format.seconds(last), format.seconds(account.forward), format.seconds(account.backward),
    format.seconds(account.communication), format.seconds(account.sums),
    format.seconds(account.update))
end

--- The text of a plan with operators of repeated modules in one line.
---@param plan userdata nnscaler.Plan
---@return string
function M.plan(plan)
  local rows, known, out = {}, {}, {}
  for line in plan:text():gmatch '[^\n]+' do
    local stage, path, rest = line:match '^(stage %d+  )(%S+)( .*)$'
    local key = stage and stage .. modules.folded(path) .. rest or line
    local row = known[key]
    if row then
      row.count = row.count + 1
    else
      row = { line = line, text = key, count = 1 }
      known[key], rows[#rows + 1] = row, row
    end
  end
  for i, row in ipairs(rows) do
    out[i] = row.count > 1 and ('%s (x %d)'):format(row.text, row.count) or row.line
  end
  return table.concat(out, '\n')
end

--- The report.
---@param e nnscaler.Explained
---@return string
function M.text(e)
  local out = {}
  local function add(text, ...)
    out[#out + 1] = select('#', ...) > 0 and text:format(...) or text
  end
  configuration(e, add)
  modules.whole(e, add)
  lower_bound(e, add)
  search(e, add)
  stages.text(e, add)
  add ''
  drawn(e.account, add)
  memory.kinds(e, add)
  memory.over_time(e, add)
  memory.moved(e, add)
  return table.concat(out, '\n')
end

return M
