--- What a model holds beside its weights: numbers, texts, flags, functions, and which parameters
--- are trained. A graph holds them as they were when it was traced; a hook may change them.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local kinds = require 'nnscaler.nn.kinds'
local log = require('nnscaler.log').logger 'nnscaler.program'
local sorted = require 'nnscaler.sorted'

local M = {}

-- Set by walks over the tree and by train() and eval().
local own = { training = true, path = true, _names = true }
local kDeepest = 4 -- of nested tables
local kCount = {}  -- key of a copy: how many fields it has

local function is_nested(value) return type(value) == 'table' and not getmetatable(value) end

local function copy(fields, depth)
  local out, n = {}, 0
  for key, value in next, fields do
    if not own[key] then
      n = n + 1
      out[key] = is_nested(value) and depth < kDeepest and copy(value, depth + 1) or value
    end
  end
  out[kCount] = n
  return out
end

local function is_same(fields, known, depth)
  local n = 0
  for key, value in next, fields do
    if not own[key] then
      n = n + 1
      local before = known[key]
      if is_nested(value) and depth < kDeepest then
        if not is_nested(before) or not is_same(value, before, depth + 1) then return false end
      elseif value ~= before and value == value then
        return false
      end
    end
  end
  return n == known[kCount]
end

-- A value as text that is alike in all processes.
local function shown(value)
  local kind = type(value)
  if kind == 'number' then return ('%.17g'):format(value) end
  if kind == 'function' then
    local where = debug.getinfo(value, 'S')
    return where.short_src .. ':' .. where.linedefined
  end
  if kind == 'userdata' and value.kind == 'real' then
    return require('nnscaler._C.train').fingerprint(value)
  end
  return kind == 'table' and kind or tostring(value)
end

-- Fields by name: 'h.0.drop.p' → '0.1'.
local function add(out, prefix, fields, depth)
  for key, value in next, fields do
    local name = prefix .. tostring(key)
    if is_nested(value) and not own[key] and depth < kDeepest then
      add(out, name .. '.', value, depth + 1)
    elseif not own[key] and not kinds.of(value) then
      out[name] = shown(value)
    end
  end
end

---@class nnscaler.Fields
local Fields = {}
Fields.__index = Fields

---@param model nnscaler.nn.Module
---@return nnscaler.Fields
function M.new(model)
  local self = setmetatable({ modules = model:named_modules(), current = '',
    parameters = model:named_parameters() }, Fields)
  self:note()
  self.first, self.named = self:text()
  return self
end

function Fields:note()
  self.copies, self.trained = {}, {}
  for i, entry in ipairs(self.modules) do self.copies[i] = copy(entry.module, 1) end
  for i, entry in ipairs(self.parameters) do self.trained[i] = entry.param.requires_grad end
end

function Fields:changed()
  for i, entry in ipairs(self.modules) do
    if not is_same(entry.module, self.copies[i], 1) then return true end
  end
  for i, entry in ipairs(self.parameters) do
    if entry.param.requires_grad ~= self.trained[i] then return true end
  end
  return false
end

function Fields:text()
  local named, lines = {}, {}
  for _, entry in ipairs(self.modules) do
    add(named, entry.name == '' and '' or entry.name .. '.', entry.module, 1)
  end
  for _, entry in ipairs(self.parameters) do
    named[entry.name .. '.requires_grad'] = tostring(entry.param.requires_grad)
  end
  for name, value in sorted.sorted_pairs(named) do lines[#lines + 1] = name .. '=' .. value end
  return table.concat(lines, '\n'), named
end

-- Modules and parameters are those that the engine holds the weights of.
function Fields:refuse_others()
  for i, entry in ipairs(self.modules) do
    local before = self.copies[i]
    for key, value in next, entry.module do
      if not own[key] and before[key] ~= value and (kinds.of(value) or kinds.of(before[key])) then
        fail('model', 'runtime.fields', ("'%s%s' of the model is another %s than at the start of "
          .. 'the run'):format(entry.name == '' and '' or entry.name .. '.', tostring(key),
          kinds.of(value) or kinds.of(before[key])), 'change its weights in place '
          .. '(p.data:copy_(…)), or start another run')
      end
    end
  end
end

local function differences(before, now)
  local list = {}
  for _, name in ipairs(sorted.sorted_keys(now)) do
    if before[name] ~= now[name] then
      list[#list + 1] = ('%s %s → %s'):format(name, before[name] or 'nil', now[name])
    end
  end
  for _, name in ipairs(sorted.sorted_keys(before)) do
    if now[name] == nil then list[#list + 1] = ('%s %s → nil'):format(name, before[name]) end
  end
  return table.concat(list, ', ')
end

--- Tells the states of a model apart: '' as it was at first, else a hash of what it holds.
---@return string
function Fields:version()
  if not self:changed() then return self.current end
  self:refuse_others()
  local text, named = self:text()
  if text ~= self.last then
    log.info('the model has changed (%s): it is traced as it is', differences(self.named, named))
  end
  self.last, self.named = text, named
  self.current = text == self.first and '' or base.hash(text)
  self:note()
  return self.current
end

--- Raises where ranks are about to add up the losses of different models.
---@param versions string[] by rank
---@param ranks integer[]
function M.compare(versions, ranks)
  for i, version in ipairs(versions) do
    if version ~= versions[1] then
      fail('model', 'runtime.fields', ('rank %d has changed the model in another way than rank %d; '
        .. 'expected the same fields on all ranks'):format(ranks[i], ranks[1]), 'hooks run on '
        .. 'every rank: what they change must depend on the step, not on the rank')
    end
  end
end

return M
