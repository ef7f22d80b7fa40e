--- Jobs: what a recipe or a YAML file says, changed by the command line, checked against the one
--- schema, complete. The schema is src/job/schema.cpp; docs/configuration.md is made from it.

local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.job'
local fail = require 'nnscaler.fail'
local params = require 'nnscaler.params'
local resolve = require 'nnscaler.resolve'

local M = {}

---@class nnscaler.Job the keys of docs/configuration.md, nested, defaults filled in
local Job = {}
Job.__index = Job

-- What a job knows beside its keys.
local hidden = setmetatable({}, { __mode = 'k' })

-- Functions that a configuration names, each in the table that holds it.
local functions = { { 'forward_args' }, { 'dummy_sample_gen_fn' }, { 'init_env_fn' },
  { 'optimizer', 'aggregate_outputs_fn' } }

local function resolve_functions(job)
  for _, path in ipairs(functions) do
    local at, name = job, path[#path]
    if #path > 1 then at = job[path[1]] end
    if type(at) == 'table' and type(at[name]) == 'string' then
      at[name] = resolve({ key = table.concat(path, '.'), expects = 'a function' }, at[name])
    end
  end
end

local function finish(source, overrides, declared, all)
  local names = {}
  for _, p in ipairs(declared or {}) do names[#names + 1] = p.name end
  source.overrides, source.parameters = overrides, names
  local job, text = core.resolve(source)
  setmetatable(job, Job)
  local first = type(job.init_module) == 'table' and job.init_module or { job.init_module }
  for _, name in ipairs(first) do
    resolve({ key = 'init_module', expects = 'anything' }, name)
  end
  resolve_functions(job)
  hidden[job] = { file = source.file, text = text, parameters = declared or {},
    overrides = all or overrides }
  return job
end

local function folder_of(path) return path:match('^(.*)/[^/]*$') or '.' end

-- Puts a folder first in the search path of `require`, once.
local function search_in(folder)
  local entry = ('%s/?.lua;%s/?/init.lua;'):format(folder, folder)
  if package.path:sub(1, #entry) ~= entry then package.path = entry .. package.path end
end

--- Evaluates a recipe. Its folder is on the search path of `require`.
---@param path string
---@param overrides string[] those for its parameters are taken
---@return boolean ok, any result_or_error, nnscaler.params.Context
function M.evaluate(path, overrides)
  base.file_read(path, 'job.load')
  search_in(folder_of(path))
  return params.during(overrides, function()
    local chunk, message = loadfile(path)
    if not chunk then fail('usage', 'job.load', message) end
    return chunk()
  end)
end

--- Loads a job file.
---@param path string a recipe (.lua) or a .yaml file
---@param overrides? string[] `key.sub=value` and `key.sub!`
---@return nnscaler.Job
function M.load(path, overrides)
  overrides = overrides or {}
  if path:find('%.lua$') then
    local ok, result, context = M.evaluate(path, overrides)
    if not ok then error(result, 0) end
    local rest = {}
    for i, change in ipairs(overrides) do
      if not context.used[i] then rest[#rest + 1] = change end
    end
    local text = base.file_read(path, 'job.load')
    return finish({ file = path, text = text, table = result }, rest, context.declared, overrides)
  elseif path:find('%.ya?ml$') then
    local text = base.file_read(path, 'job.load')
    search_in(folder_of(path))
    return finish({ file = path, text = text, yaml = true }, overrides)
  end
  fail('usage', 'job.load', ("'%s' is not a job"):format(path), 'a job is a .lua or a .yaml file')
end

--- Makes a job of a table, as a script does. Places in messages are those of the caller.
---@param t table
---@param overrides? string[]
---@return nnscaler.Job
function M.from_table(t, overrides)
  if getmetatable(t) == Job then return t end
  local level = 2
  local info = debug.getinfo(level, 'Sl')
  while info and info.source:find('^@nnscaler/') do
    level = level + 1
    info = debug.getinfo(level, 'Sl')
  end
  local file = info and info.currentline > 0 and ('%s:%d'):format(info.short_src, info.currentline)
    or 'table'
  return finish({ file = file, table = t }, overrides or {})
end

--- Returns the job as YAML text; Lua values appear as `!lua` and their place.
---@return string
function Job:text() return hidden[self].text end

--- Returns the file that the job was loaded from, or the place of the table.
---@return string
function Job:file() return hidden[self].file end

--- Returns the changes that the command line made, as `load` takes them.
---@return string[]
function Job:overrides() return hidden[self].overrides end

--- Returns the recipe's own parameters: list of { name, default, value, help }.
---@return table[]
function Job:parameters() return hidden[self].parameters end

--- Returns a hash of the keys that generated programs depend on.
---@return string 16 hexadecimal digits
function Job:program_key()
  local parts = {}
  for _, key in ipairs(core.keys()) do
    if key.programs then
      local value = self
      for part in key.path:gmatch('[^.]+') do
        value = type(value) == 'table' and value[part] or nil
      end
      local kind = type(value)
      if kind == 'string' or kind == 'number' or kind == 'boolean' then
        parts[#parts + 1] = ('%s=%s'):format(key.path, tostring(value))
      end
    end
  end
  return base.hash(table.concat(parts, '\n'))
end

return M
