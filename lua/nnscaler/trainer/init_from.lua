--- `checkpoint.init_from`: training starts with weights from a file, and from nothing else of it.
--- Each rank reads its parts of them.
local fail = require 'nnscaler.fail'
local tensor = require 'nnscaler.tensor'
local weights_of = require 'nnscaler.checkpoint.weights'

local M = {}

local most_lines = 20

local function spell(info) return ('%s[%s]'):format(info.dtype, table.concat(info.shape, ', ')) end

local function same(a, b) return table.concat(a, ',') == table.concat(b, ',') end

local function is_floating(dtype) return dtype:find 'float' ~= nil end

-- What the model holds: { name, shape, file_shape, dtype } by module order.
local function leaves_of(model)
  local list = {}
  for _, entry in ipairs(model:named_parameters()) do
    list[#list + 1] = { name = entry.name, shape = entry.param.shape, dtype = entry.param.dtype,
      file_shape = entry.file_shape }
  end
  for _, entry in ipairs(model:named_buffers()) do
    if entry.persistent ~= false then
      list[#list + 1] = { name = entry.name, shape = entry.buffer.shape,
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

-- Finds the tensor of each leaf; all that does not fit stands in one error.
local function match(source, model)
  local found, taken, problems, ties = {}, {}, {}, names_of(model)
  local leaves = leaves_of(model)
  for _, leaf in ipairs(leaves) do
    local info
    for _, name in ipairs(ties[leaf.name] or { leaf.name }) do
      local there = source:info(name)
      taken[name] = true
      if there and not info then
        info, found[leaf.name] = there, { name = name, shape = there.shape, dtype = there.dtype }
      end
    end
    if not info then
      local near = prefixed(source, leaf.name)
      problems[#problems + 1] = ('missing tensor: %s %s%s'):format(leaf.name, spell(leaf),
        near and (" (the file has '%s')"):format(near) or '')
    elseif not same(info.shape, leaf.shape) and not same(info.shape, leaf.file_shape or {}) then
      problems[#problems + 1] = ('wrong shape: %s is %s, the model has %s'):format(leaf.name,
        spell(info), spell { dtype = leaf.dtype, shape = leaf.file_shape or leaf.shape })
    elseif info.dtype ~= leaf.dtype
      and not (is_floating(info.dtype) and is_floating(leaf.dtype)) then
      problems[#problems + 1] = ('wrong dtype: %s is %s, the model has %s'):format(leaf.name,
        spell(info), spell(leaf))
    end
  end
  for _, name in ipairs(source.names) do
    if not taken[name] then
      problems[#problems + 1] = ('extra tensor: %s %s'):format(name, spell(source:info(name)))
    end
  end
  if #problems > 0 then
    local count = #problems
    for i = count, most_lines + 1, -1 do problems[i] = nil end
    if count > most_lines then
      problems[most_lines + 1] = ('and %d more'):format(count - most_lines)
    end
    fail('state', 'checkpoint.init_from', ("'%s' does not fit the model; nothing was changed:"
      .. '\n  %s'):format(source.path, table.concat(problems, '\n  ')))
  end
  return found
end

-- The part of a tensor that begins at `start`, in the model's shape.
local function read(source, entry, whole, start, shape)
  if start and same(entry.shape, whole) then
    local slice = {}
    for d, first in ipairs(start) do slice[d] = { first, first + shape[d] } end
    return source:read(entry.name, slice)
  end
  local x = source:read(entry.name):view(whole)
  for d, first in ipairs(start or {}) do x = x:narrow(d - 1, first, shape[d]) end
  return x
end

--- Loads the weights.
---@param t nnscaler.Trainer
function M.run(t)
  local path = t.args.checkpoint.init_from
  if path == nil then return end
  local source = weights_of.open(path)
  local found, wholes, dtypes = match(source, t.model), {}, {}
  for _, leaf in ipairs(leaves_of(t.model)) do wholes[leaf.name] = leaf.shape end
  local parts = t.sharing and t.sharing.parts or {}
  tensor.no_grad(function()
    for _, list in ipairs { t.engine.parameters, t.engine.buffers } do
      for _, own in ipairs(list) do
        local entry, part = found[own.name], parts[own.name] or {}
        if entry then
          own.data:copy_(read(source, entry, wholes[own.name], part.start, part.shape))
          if entry.dtype ~= own.data.dtype then dtypes[entry.dtype] = own.data.dtype end
        end
      end
    end
  end)
  for _, from in ipairs(require('nnscaler.sorted').sorted_keys(dtypes)) do
    t.log.info('%s of the file became %s, as the model has it.', from, dtypes[from])
  end
  t.log.info('Weights loaded from %s.', path)
end

return M
