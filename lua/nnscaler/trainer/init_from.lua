--- `checkpoint.init_from`: training starts with weights from a file, and from nothing else of it.
--- Each rank reads its parts of them.
local hugging_face = require 'nnscaler.hugging_face'
local match = require 'nnscaler.checkpoint.match'
local slices = require 'nnscaler.checkpoint.slices'
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'
local weights_of = require 'nnscaler.checkpoint.weights'

local M = {}

--- Loads the weights.
---@param t nnscaler.Trainer
function M.run(t)
  local path = t.args.checkpoint.init_from
  if path == nil then return end
  local source = hugging_face.is_folder(path) and hugging_face.weights(path)
    or weights_of.open(path)
  local found, wholes, dtypes = match.find(source, t.model, 'checkpoint.init_from'), {}, {}
  for _, leaf in ipairs(match.leaves(t.model)) do wholes[leaf.name] = leaf.shape end
  local parts = t.sharing and t.sharing.parts or {}
  tensor.no_grad(function()
    for _, list in ipairs { t.engine.parameters, t.engine.buffers } do
      for _, own in ipairs(list) do
        local entry, part = found[own.name], parts[own.name] or {}
        if entry then
          own.data:copy_(slices.read(source, entry, wholes[own.name], part.start, part.shape))
          if entry.dtype ~= own.data.dtype then dtypes[entry.dtype] = own.data.dtype end
        end
      end
    end
  end)
  for _, from in ipairs(sorted.sorted_keys(dtypes)) do
    t.log.info('%s of the file became %s, as the model has it.', from, dtypes[from])
  end
  t.log.info('Weights loaded from %s.', path)
end

return M
