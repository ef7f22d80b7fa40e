--- Stubs of the C modules (lua/meta): reads them, and complains of what differs from the functions
--- of the running binary or does not hold together.
local base = require 'nnscaler._C.base'

local M = {}

---@class tests.Stub
---@field place string file and line
---@field arguments string[] of its signature
---@field params { name: string, optional: boolean, kind: string }[]
---@field results string[] types
---@field text string

-- 'integer of a step' → 'integer', with what is in brackets.
local function type_of(text)
  local depth = 0
  for i = 1, #text do
    local c = text:sub(i, i)
    if c:match '[{(<]' then depth = depth + 1 end
    if c:match '[})>]' then depth = depth - 1 end
    local joins = text:sub(i + 1):match '^[|:]' or text:sub(1, i - 1):match '[|:,]$'
    if c == ' ' and depth == 0 and not joins then return text:sub(1, i - 1) end
  end
  return text
end

local function read_block(block)
  local said = { params = {}, results = {}, fields = {}, text = '' }
  for _, line in ipairs(block) do
    local tag, rest = line:match '^%-%-%-@(%w+)%s*(.*)$'
    if tag == 'param' then
      local name, mark, kind = rest:match '^([%w_.]+)(%??)%s*(.*)$'
      said.params[#said.params + 1] = { name = name, optional = mark == '?', kind = type_of(kind) }
    elseif tag == 'return' then
      said.results[#said.results + 1] = type_of(rest)
    elseif tag == 'class' then
      said.class = rest:match '^[%w_.]+'
    elseif tag == 'field' then
      said.fields[#said.fields + 1] = rest:match '^[%w_]+'
    elseif not tag and not line:match '^%-%-%-  ' then
      said.text = said.text .. line:sub(4)
    end
  end
  return said
end

--- The stubs of a text, per class: functions and fields.
---@param text string
---@param file string
---@return { meta: string, functions: table<string, table<string, tests.Stub>>,
---  fields: table<string, string[]> }
function M.read(text, file)
  local found = { meta = text:match '^%-%-%-@meta (%S+)\n', functions = {}, fields = {} }
  local classes, block, number = {}, {}, 0
  for line in (text .. '\n'):gmatch '([^\n]*)\n' do
    number = number + 1
    if line:match '^%-%-%-' then
      block[#block + 1] = line
    else
      local said = read_block(block)
      local owner, name, arguments = line:match '^function (%w+)[.:]([%w_]+)%((.-)%) end$'
      if name then
        local stub = { place = ('%s:%d'):format(file, number), arguments = {},
          params = said.params, results = said.results, text = said.text }
        for argument in arguments:gmatch '[%w_.]+' do
          stub.arguments[#stub.arguments + 1] = argument
        end
        local list = assert(found.functions[classes[owner]], stub.place .. ': no class')
        assert(not list[name], stub.place .. ': a second ' .. name)
        list[name] = stub
      elseif said.class then
        owner = line:match '^local (%w+) = {}$'
        if owner then
          classes[owner] = said.class
          found.functions[said.class], found.fields[said.class] = {}, said.fields
        end
      end
      block = {}
    end
  end
  return found
end

--- What is wrong with a stub by itself, as lines.
---@param stub tests.Stub
---@param known fun(class: string): boolean whether a comment of the library declares it
---@return string[]
function M.faults(stub, known)
  local list, optional = {}, false
  local function complain(text) list[#list + 1] = stub.place .. ': ' .. text end
  if not stub.text:match '%w' then complain 'does not say what it does' end
  for i = 1, math.max(#stub.arguments, #stub.params) do
    local argument, param = stub.arguments[i], stub.params[i]
    if not param or param.name ~= argument then
      complain(('argument %d is %s, @param says %s'):format(i, argument or 'missing',
        param and param.name or 'nothing'))
      break
    end
    if param.kind == '' then complain(argument .. ' has no type') end
    if optional and not param.optional and argument ~= '...' then
      complain(argument .. ' is needed behind one that may be left out')
    end
    optional = optional or param.optional
  end
  local kinds = { unpack(stub.results) }
  for _, param in ipairs(stub.params) do kinds[#kinds + 1] = param.kind end
  for _, kind in ipairs(kinds) do
    if kind == '' then complain 'a result has no type' end
    for class in kind:gmatch 'nnscaler[%w_.]+' do
      if not known(class) then complain(class .. ' is not declared') end
    end
  end
  return list
end

--- Names that only one of two sets has, as lines.
---@param what string
---@param stubs table<string, any>
---@param functions table<string, any>
---@return string[]
function M.differences(what, stubs, functions)
  local list = {}
  for name in pairs(functions) do
    if not stubs[name] then list[#list + 1] = ('%s: no stub of %s'):format(what, name) end
  end
  for name in pairs(stubs) do
    if not functions[name] then list[#list + 1] = ('%s: there is no %s'):format(what, name) end
  end
  table.sort(list)
  return list
end

--- C functions of a table that are no metamethods; operators, which have upvalues, left out.
---@param t table
---@return table<string, function>
function M.c_functions(t)
  local found = {}
  for name, value in pairs(t) do
    if type(value) == 'function' and debug.getinfo(value, 'S').what == 'C'
      and not debug.getupvalue(value, 1) and not name:match '^__' then
      found[name] = value
    end
  end
  return found
end

--- All C functions of the binary by class: modules and types of userdata.
---@return table<string, table<string, function>> functions
---@return table<string, string[]> fields of modules, sorted
function M.of_binary()
  require 'nnscaler._C.tensor' -- opens LibTorch's modules
  local functions, fields, names = {}, {}, {}
  for name in pairs(package.preload) do
    if name:match '^nnscaler%._C%.' then names[#names + 1] = name end
  end
  for _, name in ipairs(names) do
    local module = require(name)
    functions[name], fields[name] = M.c_functions(module), {}
    for key, value in pairs(module) do
      if type(value) ~= 'function' then table.insert(fields[name], key) end
    end
    table.sort(fields[name])
  end
  for name, value in pairs(debug.getregistry()) do
    if type(name) == 'string' and name:match '^nnscaler%.' and type(value) == 'table'
      and rawget(value, '__name') == name then
      local methods = name == 'nnscaler.Tensor' and require('nnscaler._C.tensor').methods or value
      local found = M.c_functions(methods)
      if next(found) then functions[name] = found end
    end
  end
  return functions, fields
end

--- All Lua files below a folder.
---@param folder string
---@param list? string[]
---@return string[]
function M.files(folder, list)
  list = list or {}
  for _, name in ipairs(base.list_folder(folder)) do
    local path = folder .. '/' .. name
    if base.file_exists(path) == 'folder' then
      M.files(path, list)
    elseif name:match '%.lua$' then
      list[#list + 1] = path
    end
  end
  return list
end

--- Names that comments of the library declare as types.
---@return table<string, true>
function M.declared()
  local names = {}
  for _, path in ipairs(M.files 'lua') do
    for name in base.file_read(path):gmatch '%-%-%-@%w+ (nnscaler[%w_.]+)' do names[name] = true end
  end
  return names
end

return M
