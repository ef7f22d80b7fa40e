--- Weights by name, as other programs write them: one safetensors file, a folder with one, a folder
--- of several with their index (model.safetensors.index.json), or a checkpoint of ours. Slices are
--- read without the rest.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

local area = 'checkpoint.weights'

---@class nnscaler.checkpoint.Weights
---@field path string
---@field names string[] in order
---@field file_of table<string, table> the open file or checkpoint that holds a tensor
---@field alias table<string, string> further names of tied weights, not in `names`
local Weights = {}
Weights.__index = Weights

-- Tensors of several files: list of { name, file }.
local function of_files(path, list)
  local names, file_of, open = {}, {}, {}
  for _, item in ipairs(list) do
    local file = open[item.file] or C.read_safetensors(item.file)
    open[item.file] = file
    if not file:info(item.name) then
      fail('state', area, ("'%s' has no tensor '%s', which the index of '%s' names"):format(
        item.file, item.name, path))
    end
    names[#names + 1], file_of[item.name] = item.name, file
  end
  return setmetatable({ path = path, names = names, file_of = file_of, alias = {} }, Weights)
end

local function of_file(path, file)
  local list = {}
  for i, name in ipairs(C.read_safetensors(file):names()) do
    list[i] = { name = name, file = file }
  end
  return of_files(path, list)
end

-- Shards as their index says: { "weight_map": { name: file } }.
local function of_index(path, index)
  local ok, told = pcall(function() return base.json_decode(base.file_read(index)) end)
  local map = ok and type(told) == 'table' and told.weight_map
  if type(map) ~= 'table' then
    fail('state', area, ("'%s' is not an index of safetensors files; expected a weight_map"):format(
      index))
  end
  local list = {}
  for name, file in sorted.sorted_pairs(map) do
    if type(name) ~= 'string' or type(file) ~= 'string' or file:find '[/\\]' then
      fail('state', area, ("'%s': the file of '%s' is '%s'; expected one beside the index"):format(
        index, tostring(name), tostring(file)))
    end
    list[#list + 1] = { name = name, file = path .. '/' .. file }
  end
  return of_files(path, list)
end

-- A checkpoint of ours; tied weights are known by all their names.
local function of_checkpoint(path)
  local saved = checkpoint.open(path)
  saved:check()
  local self = setmetatable({ path = path, names = saved:names(), file_of = {}, alias = {} },
    Weights)
  for _, name in ipairs(self.names) do self.file_of[name] = saved end
  for alias, name in sorted.sorted_pairs(saved.aliases) do
    self.file_of[alias], self.alias[alias] = saved, name
  end
  return self
end

local function ending_in(path, ending)
  local found = {}
  for _, name in ipairs(base.list_folder(path)) do
    if name:sub(-#ending) == ending then found[#found + 1] = path .. '/' .. name end
  end
  return found
end

--- Opens a file or folder; what is none of those above is refused.
---@param path string
---@return nnscaler.checkpoint.Weights
function M.open(path)
  local what = base.file_exists(path)
  if what == nil then
    fail('usage', area, ("there is no file or folder '%s'"):format(path))
  elseif what ~= 'folder' then
    return of_file(path, path)
  end
  if base.file_exists(path .. '/manifest.json') == 'file' then return of_checkpoint(path) end
  local indices = ending_in(path, '.safetensors.index.json')
  if #indices == 1 then return of_index(path, indices[1]) end
  local files = ending_in(path, '.safetensors')
  if #indices == 0 and #files == 1 then return of_file(path, files[1]) end
  if #indices == 0 and #files == 0 and #checkpoint.list(path) > 0 then
    return of_checkpoint(checkpoint.resolve(path))
  end
  return fail('usage', area, ("'%s' has %d safetensors files and %d indices of such; expected one "
    .. 'file, one index, or a checkpoint'):format(path, #files, #indices),
    'name the file itself')
end

--- Returns what a tensor is, or nil.
---@param name string
---@return { dtype: string, shape: integer[] }|nil
function Weights:info(name)
  local file = self.file_of[name]
  return file and file:info(self.alias[name] or name)
end

--- Reads a tensor, or a slice of it.
---@param name string
---@param slice? integer[][] one { start, stop } a dimension
---@return nnscaler.Tensor
function Weights:read(name, slice)
  return self.file_of[name]:read(self.alias[name] or name, slice)
end

return M
