--- Reading a checkpoint in two phases: everything is checked, and everything wrong is said in one
--- error; only then is anything copied.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local parts = require 'nnscaler.checkpoint.parts'
local sorted = require 'nnscaler.sorted'
local state = require 'nnscaler.checkpoint.state'
local tensor = require 'nnscaler.tensor'

---@class nnscaler.Checkpoint
---@field path string
---@field epoch integer
---@field step integer
---@field state table what the trainer saved
---@field manifest table
local Checkpoint = {}
Checkpoint.__index = Checkpoint

local M = {}

local function spell(info) return ('%s[%s]'):format(info.dtype, table.concat(info.shape, ', ')) end

local function message_of(err)
  return type(err) == 'table' and err.message or tostring(err)
end

-- Returns the tensors of the manifest in order, optimizer states after all weights:
-- { name, key, entry, state }.
local function stored(manifest)
  local out, states = {}, {}
  for _, entry in ipairs(manifest.tensors) do
    if not entry.alias then
      out[#out + 1] = { name = entry.name, key = entry.name, entry = entry }
      for name, inner in sorted.sorted_pairs(entry.optimizer or {}) do
        states[#states + 1] = { name = entry.name, state = name, entry = inner,
          key = entry.name .. '/' .. name }
      end
    end
  end
  for _, item in ipairs(states) do out[#out + 1] = item end
  return out
end

local function read_manifest(path)
  local file = path .. '/manifest.json'
  if base.file_exists(path) == nil then
    fail('state', 'checkpoint.load', ("there is no checkpoint '%s'"):format(path))
  end
  if base.file_exists(file) ~= 'file' then
    fail('state', 'checkpoint.load', ("'%s' is not a whole checkpoint: it has no manifest.json")
      :format(path))
  end
  local ok, manifest = pcall(function() return base.json_decode(base.file_read(file)) end)
  if not ok or type(manifest) ~= 'table' or manifest.format ~= 'nnscaler checkpoint'
    or type(manifest.tensors) ~= 'table' or type(manifest.trainer) ~= 'table' then
    fail('state', 'checkpoint.load', ("'%s' is not a manifest of a checkpoint%s"):format(file,
      ok and '' or ': ' .. message_of(manifest)))
  end
  if type(manifest.version) ~= 'number' or manifest.version > C.version then
    fail('state', 'checkpoint.load', ("'%s' has version %s; this program reads up to %d"):format(
      file, tostring(manifest.version), C.version), 'load it with a newer nnscaler')
  end
  return manifest
end

--- Opens a checkpoint folder; a broken manifest or trainer state is an error.
---@param path string
---@return nnscaler.Checkpoint
function M.open(path)
  local manifest = read_manifest(path)
  local text = base.file_read(path .. '/' .. manifest.trainer.file)
  if C.checksum(text) ~= manifest.trainer.checksum then
    fail('state', 'checkpoint.load', ("'%s/%s' is damaged: it has not the checksum of the manifest")
      :format(path, manifest.trainer.file))
  end
  local by_name, aliases = {}, {}
  for _, entry in ipairs(manifest.tensors) do
    if entry.alias then aliases[entry.name] = entry.alias else by_name[entry.name] = entry end
  end
  return setmetatable({
    path = path, epoch = manifest.epoch, step = manifest.step, manifest = manifest,
    state = state.decode(text), by_name = by_name, aliases = aliases, files = {},
  }, Checkpoint)
end

--- Returns the names of the weights, in the order they were saved; tied names are not among them.
---@return string[]
function Checkpoint:names()
  local out = {}
  for _, entry in ipairs(self.manifest.tensors) do
    if not entry.alias then out[#out + 1] = entry.name end
  end
  return out
end

function Checkpoint:file(name)
  local file = self.files[name]
  if not file then
    file = C.read_safetensors(self.path .. '/' .. name)
    self.files[name] = file
  end
  return file
end

-- Appends to `problems` what is wrong with one stored tensor.
function Checkpoint:check_stored(item, broken, problems)
  local wrong = parts.problem(item.entry)
  if wrong then
    problems[#problems + 1] = ("'%s' in 'manifest.json' %s"):format(item.key, wrong)
    return
  end
  for _, part in ipairs(item.entry.slices) do
    if not broken[part.file] then
      local key, expected = part.key or item.key, { dtype = item.entry.dtype,
        shape = parts.shape(part) }
      local ok, file = pcall(self.file, self, part.file)
      if not ok then
        broken[part.file] = true
        problems[#problems + 1] = message_of(file)
      else
        local info = file:info(key)
        if not info then
          problems[#problems + 1] = ("missing in '%s': %s"):format(part.file, key)
        elseif spell(info) ~= spell(expected) then
          problems[#problems + 1] = ("'%s' in '%s' is %s, the manifest says %s"):format(key,
            part.file, spell(info), spell(expected))
        elseif file:checksum(key) ~= part.checksum then
          problems[#problems + 1] = ("damaged: '%s' in '%s' has not the checksum of the manifest")
            :format(key, part.file)
        end
      end
    end
  end
end

-- Appends to `problems` what keeps the weights from being loaded into `wanted`.
function Checkpoint:check_wanted(wanted, problems)
  local seen = {}
  for _, w in ipairs(wanted) do
    local name = self.aliases[w.name] or w.name
    local entry, want = self.by_name[name], w.data or w
    seen[name] = true
    if not entry then
      problems[#problems + 1] = ('missing tensor: %s %s'):format(w.name, spell(want))
    elseif entry.dtype ~= want.dtype then
      problems[#problems + 1] = ('wrong dtype: %s is %s, the model has %s'):format(w.name,
        spell(entry), spell(want))
    elseif spell(entry) ~= spell(want) then
      problems[#problems + 1] = ('wrong shape: %s is %s, the model has %s'):format(w.name,
        spell(entry), spell(want))
    end
  end
  for _, entry in ipairs(self.manifest.tensors) do
    if not entry.alias and not seen[entry.name] then
      problems[#problems + 1] = ('extra tensor: %s %s'):format(entry.name, spell(entry))
    end
  end
end

local most_lines = 20

-- Of several ranks each looks at its share of the files; all learn what any has found.
local function all_problems(problems, exchange)
  local seen, all = {}, {}
  for _, text in ipairs(exchange(base.json_encode { list = problems })) do
    for _, problem in ipairs(base.json_decode(text).list or {}) do
      if not seen[problem] then all[#all + 1] = problem end
      seen[problem] = true
    end
  end
  return all
end

--- Checks files, checksums and, if given, that the weights are exactly those of the model. All that
--- is wrong stands in one error.
---@param weights? table[] list of { name, data } or { name, dtype, shape }
---@param share? { rank: integer, ranks: integer, exchange: fun(text: string): string[] } of
---  several ranks; a collective then
function Checkpoint:check(weights, share)
  local problems, broken = {}, {}
  for i, item in ipairs(stored(self.manifest)) do
    if not share or i % share.ranks == share.rank then self:check_stored(item, broken, problems) end
  end
  if weights then self:check_wanted(weights, problems) end
  if share then problems = all_problems(problems, share.exchange) end
  if #problems == 0 then return end
  local count = #problems
  for i = count, most_lines + 1, -1 do problems[i] = nil end
  if count > most_lines then
    problems[#problems + 1] = ('and %d more'):format(count - most_lines)
  end
  fail('state', 'checkpoint.load', ("'%s' cannot be loaded; nothing was changed:\n  %s"):format(
    self.path, table.concat(problems, '\n  ')))
end

-- The file of a slice, and the tensor's name in it.
local function opener(self, key)
  return function(part) return self:file(part.file), part.key or key end
end

-- Of the manifest: a weight, or a state of the optimizer.
local function find(self, name, slot)
  local entry = self.by_name[self.aliases[name] or name]
  if entry and slot then entry = (entry.optimizer or {})[slot] end
  if not entry then
    fail('state', 'checkpoint.load', ("'%s' has no tensor '%s'"):format(self.path, slot
      and name .. '/' .. slot or name))
  end
  return entry
end

--- Returns what a weight is, or nil.
---@param name string
---@return { dtype: string, shape: integer[] }|nil
function Checkpoint:info(name) return self.by_name[self.aliases[name] or name] end

--- Returns one weight, or a slice of it, as a new tensor; only the bytes of it are read.
---@param name string
---@param slice? integer[][] one { start, stop } a dimension
---@param slot? string of the optimizer, instead of the weight
---@return nnscaler.Tensor
function Checkpoint:read(name, slice, slot)
  local entry = find(self, name, slot)
  local key = self.aliases[name] or name
  if not slice then
    slice = {}
    for d, size in ipairs(entry.shape) do slice[d] = { 0, size } end
  end
  return parts.read(entry, slice, opener(self, slot and key .. '/' .. slot or key))
end

--- Returns the states of the optimizer without their values.
---@return { parameter: string, name: string, state: string, shape: integer[], dtype: string }[]
function Checkpoint:states()
  local out = {}
  for _, item in ipairs(stored(self.manifest)) do
    if item.state then
      out[#out + 1] = { parameter = item.name, name = item.name, state = item.state,
        shape = item.entry.shape, dtype = item.entry.dtype }
    end
  end
  return out
end

--- Reads what a rank needs of an entry: `read(source)` tells.
---@param entry { name: string, state?: string }
---@param read fun(source: table): nnscaler.Tensor|nil
---@return nnscaler.Tensor|nil
function Checkpoint:part(entry, read)
  local saved = self
  return read { read = function(_, name, slice) return saved:read(name, slice, entry.state) end }
end

--- Returns the tensors of the optimizer as new tensors, in the form that optimizers load.
---@return { parameter: string, name: string, data: nnscaler.Tensor }[]
function Checkpoint:optimizer()
  local out = self:states()
  for i, entry in ipairs(out) do
    out[i] = { parameter = entry.parameter, name = entry.state,
      data = self:read(entry.parameter, nil, entry.state) }
  end
  return out
end

--- Copies the weights into tensors that `check` accepted.
---@param weights { name: string, data: nnscaler.Tensor }[]
function Checkpoint:copy_to(weights)
  tensor.no_grad(function()
    for _, w in ipairs(weights) do w.data:copy_(self:read(w.name)) end
  end)
end

return M
