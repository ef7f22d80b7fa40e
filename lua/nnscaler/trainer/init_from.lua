--- `checkpoint.init_from`: training starts with weights from a file, and from nothing else of it.
--- Each rank reads its parts of them.
local hugging_face = require 'nnscaler.hugging_face'
local match = require 'nnscaler.checkpoint.match'
local parts_of = require 'nnscaler.trainer.parts'
local slices = require 'nnscaler.checkpoint.slices'
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'
local weights_of = require 'nnscaler.checkpoint.weights'

local M = {}

-- Gives tensors of this rank what a file has for them; returns dtypes of the file by the model's.
local function fill(source, found, list, parts)
  local dtypes = {}
  tensor.no_grad(function()
    for _, own in ipairs(list) do
      local entry, part = found[own.name], parts[own.name] or {}
      if entry then
        own.data:copy_(slices.read(source, entry, own.whole, part.start, part.shape))
        if entry.dtype ~= own.data.dtype then dtypes[entry.dtype] = own.data.dtype end
      end
    end
  end)
  return dtypes
end

-- What a file holds under a prefix.
local function under(source, prefix)
  if not prefix then return source end
  local names = {}
  prefix = prefix:gsub('%.?$', '.')
  for _, name in ipairs(source.names) do
    if name:sub(1, #prefix) == prefix then names[#names + 1] = name:sub(#prefix + 1) end
  end
  return { names = names, path = source.path, alias = source.alias,
    info = function(_, name) return source:info(prefix .. name) end,
    read = function(_, name, slice) return source:read(prefix .. name, slice) end }
end

--- Loads the weights of parallel modules whose entries name a file.
---@param t nnscaler.Trainer
function M.of_parts(t)
  for i, entry in ipairs(parts_of.of(t.args) or {}) do
    local path = entry.tracing_from_weights
    local source = path and under(weights_of.open(path), entry.tracing_from_weights_prefix)
    local class = path and parts_of.class_of(entry, i)
    for _, module in ipairs(class and t.engine:modules(class.class_name) or {}) do
      local found = match.find(source, module,
        ('model.parallel_modules[%d].tracing_from_weights'):format(i))
      local list, parts = {}, {}
      for k, leaf in ipairs(match.leaves(module)) do
        list[k] = { name = leaf.name, data = leaf.tensor, whole = leaf.shape }
        parts[leaf.name] = leaf.tensor.whole
          and { start = leaf.tensor.start, shape = leaf.tensor.data.shape } or nil
      end
      fill(source, found, list, parts)
    end
    if path then t.log.info('Weights of parallel modules loaded from %s.', path) end
  end
end

--- Loads the weights.
---@param t nnscaler.Trainer
function M.run(t)
  M.of_parts(t)
  local path = t.args.checkpoint.init_from
  if path == nil then return end
  local source = hugging_face.is_folder(path) and hugging_face.weights(path)
    or weights_of.open(path)
  local found, wholes, list = match.find(source, t.model, 'checkpoint.init_from'), {}, {}
  for _, leaf in ipairs(match.leaves(t.model)) do wholes[leaf.name] = leaf.shape end
  for _, own in ipairs(t.engine.parameters) do list[#list + 1] = own end
  for _, own in ipairs(t.engine.buffers) do list[#list + 1] = own end
  for i, own in ipairs(list) do
    list[i] = { name = own.name, data = own.data, whole = wholes[own.name] }
  end
  local dtypes = fill(source, found, list, t.sharing and t.sharing.parts or {})
  for _, from in ipairs(sorted.sorted_keys(dtypes)) do
    t.log.info('%s of the file became %s, as the model has it.', from, dtypes[from])
  end
  t.log.info('Weights loaded from %s.', path)
end

return M
