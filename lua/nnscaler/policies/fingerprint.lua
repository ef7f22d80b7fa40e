--- What a policy is, as a text: where two texts are equal, the policy makes the same plan of the
--- same graph and configuration, and need not run again. A policy counts with its source, the
--- values and functions that it sees outside of itself, the modules that it requires, and the files
--- that keys of its pas_config name (`file` in its rules); what else it reads from files, the
--- environment or the clock does not.
local base = require 'nnscaler._C.base'
local policies = require 'nnscaler.policies'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = {}

-- More values than this are not looked through.
local kMost = 100000

local library = '^@?lua/nnscaler/'

-- The lines of a function; of one of the library its place, which is that of this build.
local function source_of(f, self)
  local info = debug.getinfo(f, 'S')
  if info.what == 'C' then return 'C' end
  local text = info.source
  if text:find(library) then return ('%s:%d'):format(text, info.linedefined) end
  if text:sub(1, 1) == '@' then
    local path = text:sub(2)
    if not self.files[path] then
      local read
      read, text = pcall(base.file_read, path, 'policies.fingerprint')
      if not read then return self:refuse('a function of ' .. path .. ', which is gone') end
      self.files[path] = text
    end
    text = self.files[path]
  end
  local lines, n = {}, 0
  for line in (text .. '\n'):gmatch '([^\n]*)\n' do
    n = n + 1
    if info.linedefined == 0 or n >= info.linedefined and n <= info.lastlinedefined then
      lines[#lines + 1] = line
    end
  end
  return table.concat(lines, '\n')
end

-- Names by which `require` gives parts of the library: those are of this build.
local function library_names()
  local names = {}
  for _, name in ipairs(sorted_keys(package.loaded)) do
    local value = package.loaded[name]
    local ours = name:find '^nnscaler' or type(rawget(_G, name)) == 'table' or name == '_G'
    if ours and (type(value) == 'table' or type(value) == 'function') then names[value] = name end
  end
  return names
end

local Walk = {}
Walk.__index = Walk
function Walk:add(text) self.parts[#self.parts + 1] = text end
function Walk:refuse(what) self.refused = self.refused or what end

local walk

local function walk_function(f, self)
  local text = source_of(f, self)
  if not text then return end
  self:add('function\n' .. text)
  for i = 1, 250 do
    local name, value = debug.getupvalue(f, i)
    if not name then break end
    self:add(name)
    walk(value, self)
  end
  for name in text:gmatch "require%s*%(?%s*['\"]([^'\"]+)['\"]" do
    local found, module = pcall(require, name)
    if found then walk(module, self) end
  end
end

local function walk_table(value, self)
  local keys = {}
  for key in next, value do
    local kind = type(key)
    if kind ~= 'number' and kind ~= 'string' and kind ~= 'boolean' then
      return self:refuse(('a table with a %s as key'):format(kind))
    end
    keys[key] = true
  end
  self:add '{'
  for _, key in ipairs(sorted_keys(keys)) do
    self:add(tostring(key))
    walk(rawget(value, key), self)
  end
  self:add '}'
  walk(debug.getmetatable(value), self)
end

function walk(value, self)
  local kind = type(value)
  self.count = self.count + 1
  if self.refused then return end
  if self.count > kMost then return self:refuse(('more than %d values'):format(kMost)) end
  if kind == 'number' then return self:add(('%.17g'):format(value)) end
  if kind == 'table' or kind == 'function' then
    if self.names[value] then return self:add(self.names[value]) end
    if self.seen[value] then return self:add('#' .. self.seen[value]) end
    self.seen[value] = self.count
    return (kind == 'table' and walk_table or walk_function)(value, self)
  end
  if kind == 'string' or kind == 'boolean' or kind == 'nil' then
    return self:add(kind .. ' ' .. tostring(value))
  end
  self:refuse('a ' .. kind)
end

-- The content of the files that a policy's configuration names: ' key=hash' for each.
local function files_of(rules, config)
  local out = ''
  for _, key in ipairs(sorted_keys(rules)) do
    local path = rules[key].file and config[key]
    if path and base.file_exists(path) == 'file' then
      local hash = base.hash(base.file_read(path, 'policies.fingerprint'))
      out = ('%s %s=%s'):format(out, key, hash)
    end
  end
  return out
end

--- Returns the text of a policy, or nothing and what it holds that has no text.
---@param policy string|function as pas_policy of a job
---@param config? table pas_config
---@return string|nil fingerprint the policy's name, of one that is no builtin a hash, and of each
---  file that it is given its key with a hash
---@return string|nil reason
function M.of(policy, config)
  if policies.is_plan_file(policy) then
    return 'plan ' .. base.hash(base.file_read(policy, 'plan.load'))
  end
  local f, name = policies.resolve(policy)
  local self = setmetatable({ parts = {}, files = {}, seen = {}, names = library_names(),
    count = 0 }, Walk)
  local given = type(f) == 'table' and f.keys and files_of(f.keys, config or {}) or ''
  if policies.is_builtin(policy) then return name .. given end
  self.names[f] = nil -- of a policy found by `require`, too, the source counts
  walk(f, self)
  if self.refused then return nil, self.refused end
  return name .. ' ' .. base.hash(table.concat(self.parts, '\n')) .. given
end

return M
