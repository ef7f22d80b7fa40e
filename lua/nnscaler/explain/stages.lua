--- Of each stage of a plan: the calls that take most computation and most communication, how each
--- is cut, and the modules that take most. Like calls in like modules are one row.
local format = require 'nnscaler.format'
local modules = require 'nnscaler.explain.modules'
local units = require 'nnscaler.units'

local M = {}

local kTop = 10 -- calls that a stage names

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
      local module = node and modules.folded(node.module) or ''
      -- Of the same call, whatever is done for it.
      local of = table.concat({ node and node.op or name, module, node and node.file or '',
        tostring(node and node.line or 0) }, '\0')
      local key = name .. '\0' .. of
      local row = groups[key]
      if not row then
        row = { name = name, of = of, module = module, node = node, count = 0, seconds = 0,
          forward = 0, interpolated = 0, modelled = 0 }
        groups[key], rows[#rows + 1] = row, row
      end
      row.count = row.count + 1
      row.forward = row.forward + spent.forward
      row.interpolated = row.interpolated + spent.interpolated
      row.modelled = row.modelled + spent.modelled
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
local function split_of(e, node)
  local op, known, out = e.planned[node.id + 1], e.graph:splits(node.id), {}
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

-- Where the seconds of a row come from, most of them.
local function origin(row)
  local measured = row.seconds - row.interpolated - row.modelled
  if row.modelled >= math.max(measured, row.interpolated) then return 'modelled' end
  return row.interpolated > measured and 'interpolated' or 'measured'
end

-- `across`: seconds of communication by group of calls.
local function top(e, rows, total, what, across, add)
  add('Total %s time: %s', what, format.seconds(total))
  if #rows == 0 then return end
  add('Top %d of calls that take the most %s time:', math.min(kTop, #rows), what)
  local values, shown = e.graph:values(), 0
  for i = 1, math.min(kTop, #rows) do
    local row = rows[i]
    shown = shown + row.seconds
    add('    %s%s in %s: %s (forward %s, %s), %.1f %%', row.name,
      row.count > 1 and (' x %d'):format(row.count) or '',
      row.module == '' and 'the model' or row.module, format.seconds(row.seconds),
      format.seconds(row.forward), origin(row), 100 * row.seconds / total)
    if row.node then
      add('        %s -> %s', shapes(values, row.node.inputs), shapes(values, row.node.outputs))
      add('        File "%s", line %d,  %s', row.node.file, row.node.line, row.node.source)
      if what == 'computation' then
        local annotation, split, again = split_of(e, row.node)
        add('        %s; %s, comp_time %s, comm_time %s%s', annotation, split,
          format.seconds(row.seconds), format.seconds(across[row.of] or 0),
          again and ', executed again in backward' or '')
      end
    end
  end
  add('Top %d of calls, %s time sum: %s (%.1f %%)', math.min(kTop, #rows), what,
    format.seconds(shown), 100 * shown / total)
end

--- The stages of the plan.
---@param e nnscaler.Explained
---@param add fun(text: string, ...: any)
function M.text(e, add)
  local nodes, info = e.graph:nodes(), e.line.plan:info()
  for s, devices in ipairs(info.stages) do
    local found = of_stage(e.account, s - 1)
    if found then
      local rank, across = found.rank, {}
      add ''
      add('plan analysis for stage %d on devices [%s], rank %d, of a micro-batch, with mem %s',
        s - 1, table.concat(devices, ', '), rank.rank,
        units.bytes(rank.memory.total + rank.state))
      local calls, computing = grouped(nodes, found.list, false)
      local links, communicating = grouped(nodes, found.list, true)
      for _, row in ipairs(links) do across[row.of] = (across[row.of] or 0) + row.seconds end
      top(e, calls, computing, 'computation', across, add)
      top(e, links, communicating, 'communication', across, add)
      modules.of_stage(e, found.list, s - 1, add)
    end
  end
end

return M
