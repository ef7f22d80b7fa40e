--- The part of Module that walks the tree: names, paths, tied parameters. Order everywhere: a
--- module's own fields as they were assigned, then its submodules, each the same way.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local kinds = require 'nnscaler.nn.kinds'
local sorted = require 'nnscaler.sorted'

-- Fields that became a module or parameter after holding a plain value: __newindex is not called
-- for those, so they are found here and join in the order of their names.
local function adopt(module, names)
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  local late = {}
  for key, value in next, module do
    if not known[key] and key ~= '_names' and kinds.of(value) then late[key] = true end
  end
  for key in sorted.sorted_pairs(late) do names[#names + 1] = key end
end

-- Lists in Lua count from 1, names from 0. Names stand in files, as UTF-8.
local function spelled(key, module)
  if type(key) == 'number' then return tostring(key - 1) end
  if type(key) == 'table' then return key.name end
  if type(key) ~= 'string' or not base.is_utf8(key) then
    fail('model', 'nn.names', ("a field of a %s has the name '%s'; expected a text in UTF-8")
      :format(module.class_name, tostring(key)))
  end
  return key
end

local function join(path, name) return path == '' and name or path .. '.' .. name end

-- Returns { key =, name =, kind =, value = } of what the module itself holds.
local function fields(module)
  local names, list, seen = rawget(module, '_names'), {}, {}
  adopt(module, names)
  for _, key in ipairs(names) do
    local value = rawget(module, key)
    local kind = kinds.of(value)
    if kind and not seen[key] then
      seen[key] = true
      list[#list + 1] = { key = key, name = spelled(key, module), kind = kind, value = value }
    end
  end
  return list
end

-- Calls visit(path, module, fields) for the module and all below, parents first; a module that is
-- reached twice is visited under its first path.
local function walk(module, path, visit, seen)
  seen = seen or {}
  if seen[module] then return end
  seen[module] = true
  local list = fields(module)
  visit(path, module, list)
  for _, field in ipairs(list) do
    if field.kind == 'module' then walk(field.value, join(path, field.name), visit, seen) end
  end
end

-- Entries of one kind, each tensor once; later names of the same tensor go to `aliases`.
local function tensors(root, kind, aliases)
  local list, names = {}, {}
  walk(root, '', function(path, module, held)
    for _, field in ipairs(held) do
      if field.kind == kind then
        local name = join(path, field.name)
        if names[field.value] then
          if aliases then aliases[#aliases + 1] = { alias = name, name = names[field.value] } end
        else
          names[field.value] = name
          list[#list + 1] = { name = name, value = field.value, module = module, key = field.key }
        end
      end
    end
  end)
  return list
end

-- Modules in a plain table have no names and would not be trained: say so.
local function refuse_hidden(module, path)
  for key, value in next, module do
    if type(value) == 'table' and key ~= '_names' and not getmetatable(value) then
      for _, item in next, value do
        if kinds.of(item) then
          fail('model', 'nn.names', ("field '%s' of %s '%s' is a plain table that holds a %s")
            :format(tostring(key), module.class_name, path, kinds.of(item)),
            'wrap it: nn.ModuleList { … }')
        end
      end
    end
  end
end

---@param Module table
return function(Module)
  --- Parameters with their names, tied ones once under their first name; `file_shape` where files
  --- hold one in another shape (a module says so in its `file_shapes`).
  ---@return { name: string, param: nnscaler.Tensor, module: nnscaler.nn.Module, key: string,
  ---   file_shape?: integer[] }[]
  function Module:named_parameters()
    local list = tensors(self, 'parameter')
    for _, entry in ipairs(list) do
      entry.param, entry.value = entry.value, nil
      entry.file_shape = (rawget(entry.module, 'file_shapes') or {})[entry.key]
    end
    return list
  end

  --- Buffers with their names.
  ---@return { name: string, buffer: nnscaler.Tensor, persistent: boolean,
  ---   module: nnscaler.nn.Module, key: string }[]
  function Module:named_buffers()
    local list = tensors(self, 'buffer')
    for _, entry in ipairs(list) do
      entry.buffer, entry.value = entry.value, nil
      entry.persistent = entry.buffer.persistent
    end
    return list
  end

  --- The module itself under the name "" and all below it.
  ---@return { name: string, module: nnscaler.nn.Module }[]
  function Module:named_modules()
    local list = {}
    walk(self, '', function(path, module) list[#list + 1] = { name = path, module = module } end)
    return list
  end

  --- The modules that this one holds itself.
  ---@return { name: string, module: nnscaler.nn.Module }[]
  function Module:named_children()
    local list = {}
    for _, field in ipairs(fields(self)) do
      if field.kind == 'module' then
        list[#list + 1] = { name = field.name, module = field.value }
      end
    end
    return list
  end

  --- Parameters in the order of named_parameters.
  ---@return nnscaler.Tensor[]
  function Module:parameters()
    local list = {}
    for i, entry in ipairs(self:named_parameters()) do list[i] = entry.param end
    return list
  end

  --- Second and later names of tied parameters and shared buffers.
  ---@return { alias: string, name: string }[]
  function Module:tied_names()
    local aliases = {}
    tensors(self, 'parameter', aliases)
    tensors(self, 'buffer', aliases)
    return aliases
  end

  --- Tells each module, parameter and lazy buffer below this one its name, which then is the root.
  function Module:assign_paths()
    walk(self, '', function(path, module)
      rawset(module, 'path', path)
      refuse_hidden(module, path)
    end)
    for _, kind in ipairs { 'parameter', 'buffer' } do
      for _, entry in ipairs(tensors(self, kind)) do entry.value.path = entry.name end
    end
  end
end
