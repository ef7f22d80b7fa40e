--- Why the tensors of a plan lie as they do: one sentence for each weight or buffer of a name, or
--- for each result of the calls of a module, by the cuts of the calls that read or make it.
local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.plan'
local fail = require 'nnscaler.fail'
local glob = require 'nnscaler.optim.glob'
local nearest = require('nnscaler._C.job').nearest

local M = {}

local kind_of = { parameter = 'weight', buffer = 'buffer', input = 'input' }

local function place(node)
  return ('%s in %s at %s:%d'):format(node.op, node.module == '' and 'the model' or node.module,
    node.file, node.line)
end

-- What a cut of a node does to a tensor of it, and the name of what is cut.
local function effect(e, builder, node, cut, side, at)
  if cut.input < 0 then return 'whole' end
  local split = builder:split(node.id, cut.input, cut.dim, cut.parts)
  local name = ('dim %d of operand %d'):format(cut.dim, cut.input)
  for _, known in ipairs(e.graph:splits(node.id).splits) do
    if known.input == cut.input and known.dim == cut.dim then
      name = ("'%s'"):format(known.identifier)
    end
  end
  return split and split[side][at] or 'replicate', name
end

-- Clauses of how a call lets a tensor lie; whether it is cut there.
local function clauses(e, builder, node, op, side, at)
  local out, is_cut = {}, false
  for _, cut in ipairs(op.steps) do
    local how, name = effect(e, builder, node, cut, side, at)
    if type(how) == 'number' then
      is_cut = true
      out[#out + 1] = ('cut along dim %d into %d, as %s is cut along %s'):format(how, cut.parts,
        place(node), name)
    elseif how == 'value' then
      out[#out + 1] = ('a sum of %d addends, as %s is cut along %s, over which it sums'):format(
        cut.parts, place(node), name)
    elseif how == 'whole' then
      out[#out + 1] = ('whole on %d device(s), as %s runs whole on each'):format(cut.parts,
        place(node))
    else
      out[#out + 1] = ('whole on %d device(s), as %s is cut along %s, which it does not have')
        :format(cut.parts, place(node), name)
    end
  end
  if #out == 0 then out[1] = ('whole on one device, where %s runs'):format(place(node)) end
  return table.concat(out, ', then '), is_cut
end

local rests = { [0] = 'each unit keeps all of it', 'its optimizer state rests in shards over the '
  .. 'ranks that hold it (ZeRO 1)', 'its gradient and optimizer state rest in shards over the '
  .. 'ranks that hold it (ZeRO 2)', 'it rests in shards over the ranks that hold it and is '
  .. 'gathered for use (ZeRO 3)' }

local function title(value)
  return ("%s '%s' [%s]"):format(kind_of[value.role], value.name, table.concat(value.shape, ', '))
end

-- The sentence of a weight, a buffer or an input.
local function of_value(e, builder, planned, value, plan)
  local told, seen = {}, {}
  for _, node in ipairs(e.graph:nodes()) do
    for at, id in ipairs(node.inputs) do
      if id == value.id then
        local text = clauses(e, builder, node, planned[node.id + 1], 'inputs', at)
        if not seen[text] then seen[text], told[#told + 1] = true, text end
      end
    end
  end
  local text = ('%s is %s'):format(title(value), #told > 0 and table.concat(told, '; and ')
    or 'read by no call')
  if value.role ~= 'parameter' then return text .. '.' end
  local level = plan.zero.levels[value.name] or plan.zero.level
  local units = plan.runtime_ngpus / plan.plan_ngpus
  if units > 1 then
    text = ('%s; %s%s'):format(text, rests[level], value.requires_grad
      and (', and its gradient is summed over %d units'):format(units) or '')
  end
  return text .. '.'
end

-- The sentence of a call's result.
local function of_result(e, builder, planned, node, at, id)
  local op, value = planned[node.id + 1], e.graph:values()[id + 1]
  local text = clauses(e, builder, node, op, 'outputs', at)
  local again = op.recompute >= 0 and ('; it is made again in backward (group %d of recompute), so '
    .. 'it is not kept'):format(op.recompute) or ''
  return ('result %d of %s [%s] is %s%s.'):format(at - 1, node.op,
    table.concat(value.shape, ', '), text, again)
end

--- The sentences for a name: of weights, buffers and inputs (a pattern may stand for several), else
--- of the results of a module's calls.
---@param e nnscaler.Explained
---@param name string
---@return string
function M.text(e, name)
  local plan, out, names = base.json_decode(e.line.plan:json()), {}, {}
  local builder = core.builder(e.graph, plan.plan_ngpus, plan.runtime_ngpus)
  for _, value in ipairs(e.graph:values()) do
    if kind_of[value.role] and value.name ~= '' then
      names[#names + 1] = value.name
      if glob.match(name, value.name) then
        out[#out + 1] = of_value(e, builder, plan.ops, value, plan)
      end
    end
  end
  for _, node in ipairs(#out == 0 and e.graph:nodes() or {}) do
    names[#names + 1] = node.module
    if node.module ~= '' and glob.match(name, node.module) then
      for at, id in ipairs(node.outputs) do
        if id >= 0 then out[#out + 1] = of_result(e, builder, plan.ops, node, at, id) end
      end
    end
  end
  if #out == 0 then
    local near = nearest(name, names)
    fail('usage', 'plan.why', ("--why: no weight, buffer, input or module '%s'"):format(name),
      near and ("did you mean '%s'?"):format(near) or nil)
  end
  return table.concat(out, '\n')
end

return M
