--- The slices of the states of this rank, on their way to files and back: each rank writes and
--- reads its own, and nobody gathers a model. Files hold some weights in another shape than the
--- model (`file_shapes` of a module): a slice of such is a slice of the file for each first index.
local fail = require 'nnscaler.fail'
local files = require 'nnscaler.checkpoint.slices'
local match = require 'nnscaler.checkpoint.match'
local release = require('nnscaler._C.runtime').release
local tensor = require 'nnscaler.tensor'

local M = {}

local function same(a, b) return table.concat(a, ',') == table.concat(b, ',') end

--- What this rank holds of the store and of an optimizer's state, for Store:keepers.
---@param store nnscaler.Store
---@param state { tensors: table[] } of the optimizer
---@return table[] list of { key, name, state, kind, data, slice }
function M.held(store, state)
  local list = {}
  for _, leaf in ipairs(store.leaves) do
    if leaf.data then
      list[#list + 1] = { key = leaf.name, name = leaf.name, state = '', kind = leaf.kind,
        data = leaf.data, slice = leaf.slice }
    end
  end
  for _, entry in ipairs(state.tensors) do
    list[#list + 1] = { key = entry.parameter .. '\n' .. entry.name, name = entry.parameter,
      state = entry.name, data = entry.data, slice = store.by_name[entry.parameter].rest }
  end
  return list
end

local function ranges(start, shape)
  local list = {}
  for d, first in ipairs(start) do list[d] = { first, first + shape[d] } end
  return list
end

-- Adds what files hold of one entry.
local function add(pieces, entry, file_shape, file)
  local data, slice = entry.data:detach(), entry.slice
  local piece = { file = file, parameter = entry.name, state = entry.state, kind = entry.kind }
  local whole = same(slice.shape, data.shape) and slice.whole or data.shape
  if not file_shape or not same(slice.shape, data.shape) then
    piece.data, piece.shape = data, whole
    if same(slice.shape, data.shape) then piece.slice = ranges(slice.start, slice.shape) end
    pieces[#pieces + 1] = piece
  elseif same(slice.shape, whole) then
    piece.data = data:contiguous():view(file_shape)
    pieces[#pieces + 1] = piece
  elseif #whole == #file_shape + 1 and whole[1] * whole[2] == file_shape[1] then
    local key = entry.name .. (entry.state ~= '' and '/' .. entry.state or '')
    for i = 0, slice.shape[1] - 1 do
      local of = ranges({ unpack(slice.start, 2) }, { unpack(slice.shape, 2) })
      local before = (slice.start[1] + i) * whole[2]
      of[1] = { before + of[1][1], before + of[1][2] }
      pieces[#pieces + 1] = { file = file, parameter = entry.name, state = entry.state,
        kind = entry.kind, key = ('%s#%d'):format(key, slice.start[1] + i),
        data = data:select(0, i), shape = file_shape, slice = of }
    end
  else
    fail('internal', 'checkpoint.save', ("no slices of '%s' in the shape of its file"):format(
      entry.name))
  end
end

--- Pieces of files for what this rank keeps.
---@param model nnscaler.nn.Module
---@param list table[] of `held`
---@param keeps table<string, boolean> of Store:keepers
---@param rank integer
---@param ranks integer how many
---@return nnscaler.CheckpointPiece[]
function M.pieces(model, list, keeps, rank, ranks)
  local shapes, pieces = {}, {}
  for _, leaf in ipairs(match.leaves(model)) do shapes[leaf.name] = leaf.file_shape end
  local ending = ('-%05d-of-%05d.safetensors'):format(rank + 1, ranks)
  for _, entry in ipairs(list) do
    if keeps[entry.key] then
      add(pieces, entry, shapes[entry.name],
        (entry.state == '' and 'model' or 'optimizer') .. ending)
    end
  end
  return pieces
end

--- What a checkpoint has to hold for a model.
---@param model nnscaler.nn.Module
---@return { name: string, shape: integer[], dtype: string, whole: integer[] }[]
function M.wanted(model)
  local list = {}
  for i, leaf in ipairs(match.leaves(model)) do
    list[i] = { name = leaf.name, dtype = leaf.dtype, shape = leaf.file_shape or leaf.shape,
      whole = leaf.shape }
  end
  return list
end

-- A slice, of a weight or a state, as it lies in the model.
local function read(saved, entry, whole, slice)
  local start, shape = slice and slice.start, slice and slice.shape
  if slice and same(slice.shape, slice.whole) then start = nil end
  return saved:part(entry, function(source)
    return slice and files.read(source, entry, whole, start, shape)
  end, function(x)
    if not slice then return nil end
    x = x:view(whole)
    for d, first in ipairs(start or {}) do x = x:narrow(d - 1, first, shape[d]) end
    return x:contiguous()
  end)
end

--- Reads this rank's slices of an optimizer's state. Where rank 0 reads for all, a collective.
---@param saved nnscaler.Checkpoint
---@param store nnscaler.Store
---@param wanted table[]
---@return { parameter: string, name: string, data: nnscaler.Tensor }[]
function M.optimizer(saved, store, wanted)
  local by_name, out = {}, {}
  for _, want in ipairs(wanted) do by_name[want.name] = want end
  for _, entry in ipairs(saved:states()) do
    local want, leaf = by_name[entry.parameter], store.by_name[entry.parameter]
    local whole, rest = entry.shape, leaf and leaf.rest
    if want and same(entry.shape, want.shape) then
      whole = want.whole
    elseif rest then -- does not lie as its weight does: kept whole
      rest = { start = {}, shape = entry.shape, whole = entry.shape }
    end
    local data = read(saved, entry, whole, rest)
    if data then
      out[#out + 1] = { parameter = entry.parameter, name = entry.state, data = data }
    end
  end
  return out
end

--- Reads this rank's slices of the weights into them. Where rank 0 reads for all, a collective.
---@param saved nnscaler.Checkpoint
---@param store nnscaler.Store
---@param wanted table[]
function M.weights(saved, store, wanted)
  tensor.no_grad(function()
    for _, want in ipairs(wanted) do
      local leaf = store.by_name[want.name]
      local x = read(saved, { name = want.name, shape = want.shape }, want.whole, leaf.slice)
      if x then
        leaf.data:copy_(x)
        release(x) -- the collector would come to it late
      end
    end
  end)
end

return M
