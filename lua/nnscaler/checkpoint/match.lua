--- Which tensor of a file each weight of a model takes. All that does not fit stands in one error.
local fail = require 'nnscaler.fail'

local M = {}

local most_lines = 20

local function spell(info) return ('%s[%s]'):format(info.dtype, table.concat(info.shape, ', ')) end

local function same(a, b) return table.concat(a, ',') == table.concat(b, ',') end

local function is_floating(dtype) return dtype:find 'float' ~= nil end

-- The whole shape of a weight, of which a parallel module may hold a part.
local function shape_of(x) return x.whole or x.shape end

--- What the model holds, in module order.
---@param model nnscaler.nn.Module
---@return { name: string, tensor: nnscaler.Tensor, shape: integer[], dtype: string,
---  file_shape?: integer[] }[]
function M.leaves(model)
  local list = {}
  for _, entry in ipairs(model:named_parameters()) do
    list[#list + 1] = { name = entry.name, tensor = entry.param, shape = shape_of(entry.param),
      dtype = entry.param.dtype, file_shape = entry.file_shape }
  end
  for _, entry in ipairs(model:named_buffers()) do
    if entry.persistent ~= false then
      list[#list + 1] = { name = entry.name, tensor = entry.buffer, shape = shape_of(entry.buffer),
        dtype = entry.buffer.dtype }
    end
  end
  return list
end

-- Names under which a leaf may stand in a file: its own first, then those it is tied to.
local function names_of(model)
  local names = {}
  for _, tie in ipairs(model:tied_names()) do
    names[tie.name] = names[tie.name] or { tie.name }
    table.insert(names[tie.name], tie.alias)
  end
  return names
end

-- A tensor of the file that has the missing name behind a prefix, as 'module.' or 'model.'.
local function prefixed(source, name)
  for _, other in ipairs(source.names) do
    if other:sub(-#name - 1) == '.' .. name then return other end
  end
end

-- Why a tensor of the file cannot be that weight, or nil.
local function mismatch(leaf, info)
  if not same(info.shape, leaf.shape) and not same(info.shape, leaf.file_shape or {}) then
    return ('wrong shape: %s is %s, the model has %s'):format(leaf.name, spell(info),
      spell { dtype = leaf.dtype, shape = leaf.file_shape or leaf.shape })
  elseif info.dtype ~= leaf.dtype and not (is_floating(info.dtype) and is_floating(leaf.dtype)) then
    return ('wrong dtype: %s is %s, the model has %s'):format(leaf.name, spell(info), spell(leaf))
  end
end

--- Finds the tensor of each weight.
---@param source nnscaler.checkpoint.Weights
---@param model nnscaler.nn.Module
---@param area string of the error
---@return table<string, { name: string, shape: integer[], dtype: string }>
---   by the weight's name
function M.find(source, model, area)
  local found, taken, problems, ties = {}, {}, {}, names_of(model)
  for _, leaf in ipairs(M.leaves(model)) do
    local info
    for _, name in ipairs(ties[leaf.name] or { leaf.name }) do
      local there = source:info(name)
      taken[name] = true
      if there and not info then
        info = there
        found[leaf.name] = { name = name, shape = there.shape, dtype = there.dtype }
      end
    end
    if not info then
      local near = prefixed(source, leaf.name)
      problems[#problems + 1] = ('missing tensor: %s %s%s'):format(leaf.name, spell(leaf),
        near and (" (the file has '%s')"):format(near) or '')
    else
      problems[#problems + 1] = mismatch(leaf, info)
    end
  end
  for _, name in ipairs(source.names) do
    if not taken[name] then
      problems[#problems + 1] = ('extra tensor: %s %s'):format(name, spell(source:info(name)))
    end
  end
  if #problems == 0 then return found end
  local count = #problems
  for i = count, most_lines + 1, -1 do problems[i] = nil end
  if count > most_lines then
    problems[most_lines + 1] = ('and %d more'):format(count - most_lines)
  end
  return fail('state', area, ("'%s' does not fit the model; nothing was changed:\n  %s"):format(
    source.path, table.concat(problems, '\n  ')))
end

return M
