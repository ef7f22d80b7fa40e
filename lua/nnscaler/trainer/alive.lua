--- What a training step holds where an error stops it: read from the stack of the functions of its
--- program, which is still there.
local door = require 'nnscaler._C.tensor'
local slots = require 'nnscaler.optim.slots'
local tensor = require 'nnscaler.tensor'
local units = require 'nnscaler.units'

local M = {}

local kMost = 10 -- tensors that are listed
-- What the tables that functions of programs are called with hold; other locals are values of the
-- micro-batch, as is what backward will need (`s`).
local kinds = { p = 'weights', w = 'weights', g = 'gradients', dw = 'gradients', u = 'buffers',
  input = 'samples', ctx = false, block = false }

-- Bytes of a tensor; nil of one that was released.
local function bytes_of(x)
  local ok, bytes = pcall(function() return x:numel() * (slots.width[x.dtype] or 1) end)
  return ok and bytes or nil
end

-- Adds the tensors below a value of a program, by their paths, as 'h.0.gelu'.
local function add(found, value, path, kind)
  if found.seen[value] then return end
  if tensor.is_tensor(value) then
    found.seen[value] = true
    local bytes = bytes_of(value)
    if bytes then found[#found + 1] = { name = path, bytes = bytes, kind = kind } end
  elseif type(value) == 'table' then
    found.seen[value] = true
    for key, item in next, value do
      add(found, item, path and path .. '.' .. tostring(key) or tostring(key), kind)
    end
  end
end

-- Levels of the stack at which functions of a program stand, the innermost first, and their places.
local function frames(texts)
  local list, level = {}, 1
  while true do
    local info = debug.getinfo(level, 'Sl')
    if not info then return list end
    if texts[info.source] then
      -- One less: this function's own level is gone for who reads the locals.
      list[#list + 1] = { level = level - 1, source = info.source, line = info.currentline }
    end
    level = level + 1
  end
end

-- The line of a program at which it stands, with the comment that says where that is in the model.
local function line_of(text, number)
  local at, before, current = 0, '', ''
  for line in (text .. '\n'):gmatch '(.-)\n' do
    at = at + 1
    if at == number then
      current = line
      break
    end
    before = line
  end
  local comment = not current:find('--', 1, true) and before:match '^%s*%-%- (.*)$'
  return (current:match '^%s*(.-)%s*$') .. (comment and '  -- ' .. comment or '')
end

local function total_of(found, kind)
  local bytes = 0
  for _, item in ipairs(found) do
    if not kind or item.kind == kind then bytes = bytes + item.bytes end
  end
  return bytes
end

local function optimizer_bytes(optimizer)
  local found = { seen = {} }
  for _, slot in ipairs(optimizer and optimizer.slots or {}) do
    add(found, slot.tensors, slot.name, 'optimizer')
  end
  return total_of(found)
end

--- What is alive, by kind and by the largest tensors of the micro-batch, and where its program
--- stands. To be called in the handler of an error, which runs before the stack is left.
---@param t nnscaler.Trainer
---@return string[] lines
function M.lines(t)
  local texts, found = t.engine and t.engine.texts or {}, { seen = {} }
  local stack = frames(texts)
  for i = #stack, 1, -1 do -- the outermost has the longest paths
    local k = 1
    while true do
      local name, value = debug.getlocal(stack[i].level, k)
      if not name then break end
      local kind = kinds[name]
      if kind == nil then kind = 'values' end
      if kind then add(found, value, name ~= 's' and not kinds[name] and name or nil, kind) end
      k = k + 1
    end
  end
  local parts, told = {}, 0
  local function part(name, bytes)
    if bytes > 0 then parts[#parts + 1] = ('%s %s'):format(name, units.bytes(bytes)) end
    told = told + bytes
  end
  part('weights', total_of(found, 'weights'))
  part('gradients', total_of(found, 'gradients'))
  part('optimizer', optimizer_bytes(t.optimizer))
  part('this micro-batch', total_of(found, 'values'))
  part('samples', total_of(found, 'samples'))
  local live = door.memory()
  part('other', math.max(0, live - told))
  local lines = { ('alive: %s (%s)'):format(units.bytes(live), table.concat(parts, ', ')) }
  local values = {}
  for _, item in ipairs(found) do
    if item.kind == 'values' then values[#values + 1] = item end
  end
  table.sort(values, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.name < b.name
  end)
  if #values > 0 then lines[#lines + 1] = 'largest of this micro-batch:' end
  for i = 1, math.min(kMost, #values) do
    lines[#lines + 1] = ('  %-40s %s'):format(values[i].name, units.bytes(values[i].bytes))
  end
  if stack[1] then
    lines[#lines + 1] = ('step %d, at %s:%d: %s'):format(t.step + 1,
      (stack[1].source:gsub('^[@=]', '')), stack[1].line,
      line_of(texts[stack[1].source], stack[1].line))
  end
  return lines
end

return M
