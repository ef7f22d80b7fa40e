--- What `nnscaler plan` tells of a plan, of any policy: the configuration, where figures come from,
--- the modules of the model by depth, the least memory, of each stage what takes its time and how
--- that is split, the predicted time line, memory by rank and kind, and bytes moved. Modules and
--- calls that repeat under numbers of a list are one line.
local base = require 'nnscaler._C.base'
local format = require 'nnscaler.format'
local solve = require 'nnscaler._C.solve'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local timeline = require 'nnscaler.plot.timeline'
local traffic = require 'nnscaler.runtime.traffic'
local units = require 'nnscaler.units'

local M = {}

local kTop = 10 -- calls that a stage names
local kColumns = 60 -- of a time line

---@class nnscaler.Explained what a report is made from
---@field graph userdata nnscaler.Graph
---@field line nnscaler.Pipeline with the plan
---@field account nnscaler.StepAccount of the plan
---@field whole nnscaler.StepAccount of the model on one device, one micro-batch
---@field settings nnscaler.StepSettings that both were priced with

local width = { float64 = 8, float32 = 4, bfloat16 = 2, float16 = 2, int64 = 8, int32 = 4,
  int16 = 2, int8 = 1, uint8 = 1, bool = 1 }

local function bytes_of(value)
  local n = width[value.dtype] or 4
  for _, size in ipairs(value.shape) do n = n * size end
  return n
end

-- A path with the numbers of lists as '*'.
local function folded(path) return (('.' .. path):gsub('%.%d+', '.*'):sub(2)) end

-- Rows, largest first; those of equal size by name.
local function by_size(rows, key)
  table.sort(rows, function(a, b)
    if a[key] ~= b[key] then return a[key] > b[key] end
    return a.name < b.name
  end)
  return rows
end

-- Of each node: bytes of weights and buffers that it reads first, seconds of its forward, bytes of
-- its results that have a gradient.
local function figures(e)
  local values, seen, forward, out = e.graph:values(), {}, {}, {}
  for _, spent in ipairs(e.whole.ranks[1].spent) do
    forward[spent.node] = (forward[spent.node] or 0) + spent.forward
  end
  for i, node in ipairs(e.graph:nodes()) do
    local row = { param_mem = 0, buffer_mem = 0, train_mem = 0, fw_span = forward[node.id] or 0 }
    for _, id in ipairs(node.inputs) do
      local value = values[id + 1]
      local kind = value.role == 'parameter' and 'param_mem'
        or value.role == 'buffer' and 'buffer_mem'
      if kind and not seen[id] then
        seen[id] = true
        row[kind] = row[kind] + bytes_of(value)
      end
    end
    for _, id in ipairs(node.outputs) do
      local value = values[id + 1]
      if value and value.requires_grad then row.train_mem = row.train_mem + bytes_of(value) end
    end
    out[i] = row
  end
  return out
end

-- Modules and single calls of each depth, with the sums of their figures.
local function modules(e)
  local depths, rows = {}, figures(e)
  for i, node in ipairs(e.graph:nodes()) do
    local parts = {}
    for part in node.module:gmatch '[^.]+' do parts[#parts + 1] = part end
    for depth = 1, #parts + 1 do
      local path = depth <= #parts and table.concat(parts, '.', 1, depth) or nil
      local name = path and folded(path) or node.op
      depths[depth] = depths[depth] or {}
      local sum = depths[depth][name]
      if not sum then
        sum = { name = name, instances = {}, count = 0 }
        depths[depth][name] = sum
      end
      local instance = path or i
      if not sum.instances[instance] then
        sum.instances[instance], sum.count = true, sum.count + 1
      end
      for _, key in ipairs { 'param_mem', 'fw_span', 'train_mem', 'buffer_mem' } do
        sum[key] = (sum[key] or 0) + rows[i][key]
      end
    end
  end
  return depths
end

local function module_table(e, add)
  add 'modules, on one device, of a micro-batch: param_mem weights, fw_span forward, train_mem'
  add '  results that have a gradient, buffer_mem buffers; the largest three, x n: all of a list'
  for depth, sums in ipairs(modules(e)) do
    add('depth %d', depth)
    local rows = {}
    for _, sum in sorted_pairs(sums) do rows[#rows + 1] = sum end
    for _, key in ipairs { 'param_mem', 'fw_span', 'train_mem', 'buffer_mem' } do
      by_size(rows, key)
      local text = {}
      for i = 1, math.min(3, #rows) do
        local row = rows[i]
        if row[key] > 0 then
          text[#text + 1] = ('%s%s %s'):format(row.name,
            row.count > 1 and (' x %d'):format(row.count) or '',
            key == 'fw_span' and format.seconds(row[key]) or units.bytes(row[key]))
        end
      end
      add('    %-10s - %s', key, #text > 0 and table.concat(text, ', ') or 'none')
    end
  end
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
  by_size(rows, 'seconds')
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
    weights = weights + bytes_of(value)
    if value.requires_grad then trained = trained + bytes_of(value) end
  end
  for _, value in ipairs(e.graph:buffers()) do buffers = buffers + bytes_of(value) end
  local ranks = e.line.plan:info().runtime_ngpus
  local state = trained * (e.settings.state or 2)
  add('param mem %s, gradients %s, optimizer %s, buff mem %s, activation mem %s (kept between '
    .. 'forward and backward on one device)', units.bytes(weights), units.bytes(trained),
    units.bytes(state), units.bytes(buffers), units.bytes(e.whole.saved))
  add('estimated minimum memory per device %s: weights, gradients and optimizer state in shards '
    .. 'over %d rank(s); no activations', units.bytes((weights + trained + state) / ranks), ranks)
end

-- The rank that spends most in a stage, with what it spends there.
local function of_stage(account, stage)
  local best, most
  for _, rank in ipairs(account.ranks) do
    local list, sum = {}, 0
    for _, spent in ipairs(rank.spent) do
      if spent.stage == stage then
        list[#list + 1], sum = spent, sum + spent.forward + spent.backward
      end
    end
    if #list > 0 and (not best or sum > most) then
      best, most = { rank = rank, list = list }, sum
    end
  end
  return best
end

-- Like calls in like modules together.
local function grouped(nodes, list, communication)
  local groups, rows, total = {}, {}, 0
  for _, spent in ipairs(list) do
    if spent.communication == communication then
      local node = nodes[spent.node + 1]
      local name = spent.op ~= '' and spent.op or node.op
      local module = node and folded(node.module) or ''
      local key = table.concat({ name, module, node and node.file or '',
        tostring(node and node.line or 0) }, '\0')
      local row = groups[key]
      if not row then
        row = { name = name, module = module, node = node, count = 0, seconds = 0, forward = 0 }
        groups[key], rows[#rows + 1] = row, row
      end
      row.count = row.count + 1
      row.forward = row.forward + spent.forward
      row.seconds = row.seconds + spent.forward + spent.backward
      total = total + spent.forward + spent.backward
    end
  end
  table.sort(rows, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.name .. a.module < b.name .. b.module
  end)
  return rows, total
end

local function shapes(values, ids)
  local out = {}
  for i, id in ipairs(ids) do
    local value = values[id + 1]
    out[i] = ('%s%s[%s]'):format(value.name, value.name == '' and '' or ' ',
      table.concat(value.shape, ', '))
  end
  return table.concat(out, ', ')
end

-- How the plan runs a call: 'whole', or its cuts.
local function split_of(e, planned, node)
  local op, known, out = planned[node.id + 1], e.graph:splits(node.id), {}
  for _, cut in ipairs(op.steps) do
    if cut.input >= 0 then
      local name = ('dim %d of operand %d'):format(cut.dim, cut.input)
      for _, split in ipairs(known.splits) do
        if split.input == cut.input and split.dim == cut.dim then
          name = ("'%s' (dim %d of operand %d)"):format(split.identifier, cut.dim, cut.input)
        end
      end
      out[#out + 1] = ('%s into %d'):format(name, cut.parts)
    end
  end
  return known.annotation or 'not annotated', #out > 0 and 'cut ' .. table.concat(out, ', then ')
    or 'whole on each device', op.recompute >= 0
end

local function top(e, planned, rows, total, what, add)
  add('Total %s time: %s', what, format.seconds(total))
  if #rows == 0 then return end
  add('Top %d of calls that take the most %s time:', math.min(kTop, #rows), what)
  local values, shown = e.graph:values(), 0
  for i = 1, math.min(kTop, #rows) do
    local row = rows[i]
    shown = shown + row.seconds
    add('    %s%s in %s: %s (forward %s), %.1f %%', row.name,
      row.count > 1 and (' x %d'):format(row.count) or '',
      row.module == '' and 'the model' or row.module, format.seconds(row.seconds),
      format.seconds(row.forward), 100 * row.seconds / total)
    if row.node then
      add('        %s -> %s', shapes(values, row.node.inputs), shapes(values, row.node.outputs))
      add('        File "%s", line %d,  %s', row.node.file, row.node.line, row.node.source)
      if what == 'computation' then
        local annotation, split, again = split_of(e, planned, row.node)
        add('        %s; %s%s', annotation, split, again and '; executed again in backward' or '')
      end
    end
  end
  add('Top %d of calls, %s time sum: %s (%.1f %%)', math.min(kTop, #rows), what,
    format.seconds(shown), 100 * shown / total)
end

local function stages(e, planned, add)
  local nodes, info = e.graph:nodes(), e.line.plan:info()
  for s, devices in ipairs(info.stages) do
    local found = of_stage(e.account, s - 1)
    if found then
      local rank = found.rank
      add ''
      add('plan analysis for stage %d on devices [%s], rank %d, of a micro-batch, with mem %s',
        s - 1, table.concat(devices, ', '), rank.rank,
        units.bytes(rank.memory.total + rank.state))
      local rows, total = grouped(nodes, found.list, false)
      top(e, planned, rows, total, 'computation', add)
      rows, total = grouped(nodes, found.list, true)
      top(e, planned, rows, total, 'communication', add)
    end
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

local function memory(e, add)
  add('%-14s %11s %11s %11s %11s %11s %11s %11s', 'memory of rank', 'weights', 'gradients',
    'optimizer', 'buffers', 'saved', 'peak', 'total')
  for _, rank in ipairs(e.account.ranks) do
    local m = rank.memory
    add('%-14s %11s %11s %11s %11s %11s %11s %11s',
      rank.ranks > 1 and ('%d (of %d)'):format(rank.rank, rank.ranks) or tostring(rank.rank),
      units.bytes(m.parameters), units.bytes(m.gradients), units.bytes(rank.state),
      units.bytes(m.buffers + m.constants), units.bytes(m.saved), units.bytes(m.peak),
      units.bytes(m.total + rank.state))
  end
end

local function moved(e, add)
  local micro = e.settings.micro_batches or 1
  local skeleton = e.line:skeleton(e.graph, e.line.plan)
  for _, rank in ipairs(e.account.ranks) do
    local list, text = skeleton:traffic(rank.rank), {}
    for i, t in ipairs(traffic.step(list, micro)) do text[i] = ('%d %s'):format(t.calls, t.op) end
    add('bytes moved by rank %d in a step: %s%s', rank.rank,
      units.bytes(traffic.bytes(list, micro)),
      #text > 0 and ' (' .. table.concat(text, ', ') .. ')' or '')
  end
end

--- The text of a plan with operators of repeated modules in one line.
---@param plan userdata nnscaler.Plan
---@return string
function M.plan(plan)
  local rows, known, out = {}, {}, {}
  for line in plan:text():gmatch '[^\n]+' do
    local stage, path, rest = line:match '^(stage %d+  )(%S+)( .*)$'
    local key = stage and stage .. folded(path) .. rest or line
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
  local planned = base.json_decode(e.line.plan:json()).ops
  configuration(e, add)
  module_table(e, add)
  lower_bound(e, add)
  stages(e, planned, add)
  add ''
  drawn(e.account, add)
  memory(e, add)
  moved(e, add)
  return table.concat(out, '\n')
end

return M
