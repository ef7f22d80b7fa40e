--- Model sources: where graphs come from. A source gives names, shapes and initialisers of the
--- parameters, names of forward's arguments, and graphs of forward; all that makes programs asks it
--- and nothing else. Here is the one whose model is an nn.Module, or a function of tensors.
local trace = require 'nnscaler.trace'

local M = {}

---@class nnscaler.Source
---@field name string of the model, for messages, programs and their folder
---@field arg_names string[] of forward's arguments, in order
---@field loss boolean whether forward's first result is the loss
local Source = {}
Source.__index = Source

---@class nnscaler.SourceOpts
---@field name? string by default the model's class
---@field arg_names? string[] by default the model's forward_arg_names
---@field loss? boolean false: forward may return anything, arguments may want gradients

--- The source of a module; a source is returned as it is.
---@param model nnscaler.nn.Module|nnscaler.Source
---@param opts? nnscaler.SourceOpts
---@return nnscaler.Source
function M.of(model, opts)
  if getmetatable(model) == Source then return model end
  opts = opts or {}
  model:assign_paths()
  return setmetatable({
    model = model, name = opts.name or model.class_name or 'model', loss = opts.loss ~= false,
    arg_names = opts.arg_names or model.forward_arg_names or {},
  }, Source)
end

--- Parameters in module order: name, shape, dtype and initialiser, or a value.
---@return { name: string, param: nnscaler.Tensor }[]
function Source:named_parameters() return self.model:named_parameters() end

--- Buffers in module order.
---@return { name: string, buffer: nnscaler.Tensor, persistent: boolean }[]
function Source:named_buffers() return self.model:named_buffers() end

--- All modules of the model by name, itself first.
---@return { name: string, module: nnscaler.nn.Module }[]
function Source:named_modules() return self.model:named_modules() end

--- Gives all parameters and buffers their first values.
---@param seed integer
---@param device? string
function Source:materialize(seed, device) self.model:materialize(seed, device) end

--- What a graph of these arguments is specialised to, as text.
---@param args table arguments of forward; `n` counts them
---@param training boolean
---@return string
function Source:key(args, training) return trace.key(args, training, not self.loss) end

--- The graph of forward for these arguments, of which only shapes and dtypes matter.
---@param args table
---@param training boolean
---@param known? string hash of the graph that an earlier run got for them: where it is the same,
---  the model needs no second run to show that its graphs do not vary
---@return nnscaler.Graph
function Source:graph(args, training, known)
  return (trace.trace(self.model, args, { training = training, name = self.name,
    arg_names = self.arg_names, loss = self.loss, known = known }))
end

--- The graph for these arguments before anybody needs it: the next one is the same.
---@param args table
---@param training boolean
---@return nnscaler.Graph
function Source:ahead(args, training)
  return trace.ahead(self.model, args, { training = training, name = self.name,
    arg_names = self.arg_names, loss = self.loss })
end

--- A cache of what is built of the graphs of this source, one for each specialisation.
---@param opts nnscaler.trace.CacheOpts build, obtain, version, limit
---@return nnscaler.trace.Cache
function Source:cache(opts)
  return trace.cache(self.model, { name = self.name, arg_names = self.arg_names, loss = self.loss,
    build = opts.build, obtain = opts.obtain, version = opts.version, limit = opts.limit })
end

return M
