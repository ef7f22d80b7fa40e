--- Folders of models as the `transformers` library keeps them: config.json, safetensors (one file,
--- or shards with an index), perhaps a tokenizer. They are read as they are:
---
---     local model = nnscaler.from_pretrained('Llama-3.2-1B', { block = 4096 })
local base = require 'nnscaler._C.base'
local check = require 'nnscaler.nn.check'
local config_of = require 'nnscaler.hugging_face.config'
local fail = require 'nnscaler.fail'
local match = require 'nnscaler.checkpoint.match'
local slices = require 'nnscaler.checkpoint.slices'
local sorted = require 'nnscaler.sorted'
local weights_of = require 'nnscaler.checkpoint.weights'

local families = { require 'nnscaler.hugging_face.llama', require 'nnscaler.hugging_face.gpt2',
  require 'nnscaler.hugging_face.bert' }

local M = {}

local area = 'hugging_face'

--- Whether a path is a folder of this kind.
---@param path string
---@return boolean
function M.is_folder(path)
  return base.file_exists(path) == 'folder' and base.file_exists(path .. '/config.json') == 'file'
end

local function check_folder(path)
  if type(path) ~= 'string' then
    fail('usage', area, ('the path is a %s; expected the name of a folder'):format(type(path)))
  end
  if M.is_folder(path) then return end
  local hub = base.file_exists(path) == nil and path:find '^[%w._-]+/[%w._-]+$'
  fail('usage', area, ("'%s' is no folder with a config.json"):format(path), hub
    and ('nothing is fetched: `hf download %s --local-dir FOLDER` gets that model of the hub, then '
      .. 'give FOLDER'):format(path)
    or 'expected a folder as save_pretrained of the transformers library writes it')
end

local function family_of(config)
  local kind, known = config.values.model_type, {}
  for _, family in ipairs(families) do
    if type(kind) == 'string' and family.model_types[kind] then return family end
    for name in sorted.sorted_pairs(family.model_types) do known[#known + 1] = name end
  end
  return config:refuse('model_type', table.concat(known, ', '))
end

-- Weights of a folder, under the names and in the order of dimensions of our model.
---@class nnscaler.hugging_face.Weights: nnscaler.checkpoint.Weights
local Weights = {}
Weights.__index = Weights

--- Opens the weights of a folder, under the names that our models have.
---@param path string
---@param layers? integer only those of the first so many layers
---@return nnscaler.hugging_face.Weights
function M.weights(path, layers)
  check_folder(path)
  local family, files = family_of(config_of.read(path)), weights_of.open(path)
  local self = setmetatable({ path = path, names = {}, files = files, stored = {},
    transposed = {}, stacks = {} }, Weights)
  for _, name in ipairs(files.names) do
    local ours, place = family.ours(name)
    local layer = ours and tonumber(ours:match(family.layer))
    if ours and not (layers and layer and layer >= layers) then
      if not (place and self.stacks[ours]) then self.names[#self.names + 1] = ours end
      if place then
        self.stacks[ours] = self.stacks[ours] or { count = 0 }
        local stack = self.stacks[ours]
        stack[place], stack.count = name, stack.count + 1
      else
        self.stored[ours] = name
        local _, transposed = family.stored(ours)
        self.transposed[ours] = transposed and #files:info(name).shape == 2
      end
    end
  end
  return self
end

-- What one of our weights is that the file holds in so many pieces.
function Weights:stacked_info(name)
  local stack = self.stacks[name]
  local first
  for i = 0, stack.count - 1 do
    local info = stack[i] and self.files:info(stack[i])
    first = first or info
    if not info or info.dtype ~= first.dtype
      or table.concat(info.shape, ' ') ~= table.concat(first.shape, ' ') then
      fail('state', area, ("'%s' has %d pieces of %s, of which number %d %s"):format(self.path,
        stack.count, name, i, info and 'has another shape or dtype than the others'
          or 'is missing'))
    end
  end
  return { dtype = first.dtype, shape = { stack.count, unpack(first.shape) } }
end

--- Returns what a tensor is, or nil.
---@param name string
---@return { dtype: string, shape: integer[] }|nil
function Weights:info(name)
  if self.stacks[name] then return self:stacked_info(name) end
  local info = self.stored[name] and self.files:info(self.stored[name])
  if info and self.transposed[name] then info.shape = { info.shape[2], info.shape[1] } end
  return info
end

--- Reads a tensor, or a slice of it.
---@param name string
---@param slice? integer[][] one { start, stop } a dimension
---@return nnscaler.Tensor
function Weights:read(name, slice)
  if self.stacks[name] then
    local first, last = 0, self.stacks[name].count
    if slice then first, last = unpack(slice[1]) end
    return slices.stack(last - first, function(i)
      return self.files:read(self.stacks[name][first + i], slice and { unpack(slice, 2) })
    end)
  end
  if not self.transposed[name] then return self.files:read(self.stored[name], slice) end
  return self.files:read(self.stored[name], slice and { slice[2], slice[1] }):t():contiguous()
end

-- What a rank calls for its part of a weight, once it knows which.
local function reader(source, entry, whole)
  return function(start, shape) return slices.read(source, entry, whole, start, shape) end
end

-- The model's values become those of the source, read when the model is materialised. They get this
-- dtype, or one of their own: `dtype(leaf, entry)`.
local function read_from(source, model, dtype)
  local found = match.find(source, model, area)
  for _, leaf in ipairs(match.leaves(model)) do
    local entry = found[leaf.name]
    leaf.tensor.init = { kind = 'read', read = reader(source, entry, leaf.shape) }
    leaf.tensor.dtype = dtype(leaf, entry)
  end
  return model
end

--- Gives a model the weights of a file, to be read when it is materialised; they get its dtypes.
---@param model nnscaler.nn.Module
---@param path string a safetensors file, a checkpoint, or a folder with config.json
---@return nnscaler.nn.Module model
function M.load(model, path)
  local source = M.is_folder(path) and M.weights(path) or weights_of.open(path)
  return read_from(source, model, function(leaf) return leaf.dtype end)
end

--- Makes the Lua model of a folder. Its weights are read when the model is materialised: each rank
--- reads the slices that it holds. They keep the dtype of the file unless `dtype` is given, or the
--- job's precision.
---@param path string a folder with config.json and safetensors
---@param options? table `dtype`; and arguments of the model in place of those of config.json:
---  `block`, `dropout`, `layers` (the first so many of the folder's)
---@return nnscaler.nn.Module
function M.from_pretrained(path, options)
  check_folder(path)
  local config = config_of.read(path)
  local family, dtype = family_of(config), options and options.dtype
  if dtype ~= nil then
    check.one_of(area, 'dtype', dtype, { 'float32', 'float64', 'bfloat16', 'float16' })
  end
  local arguments = family.arguments(config, options and options.block)
  local layers = options and options.layers
  if layers ~= nil and check.integer(area, 'layers', layers) > arguments.layers then
    fail('usage', area, ("layers = %d; '%s' has %d"):format(layers, path, arguments.layers))
  end
  for key, value in sorted.sorted_pairs(options or {}) do
    if key ~= 'dtype' then arguments[key] = value end
  end
  local model = require(family.class)(arguments)
  read_from(M.weights(path, layers), model, function(_, entry) return dtype or entry.dtype end)
  model.pretrained = path
  return model
end

--- The family whose form a model can be written in; nil when it has none.
---@param model nnscaler.nn.Module
---@return table|nil
function M.family(model)
  for _, family in ipairs(families) do
    if model:is(require(family.class)) then return family end
  end
end

return M
