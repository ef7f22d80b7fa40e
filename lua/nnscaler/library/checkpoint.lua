--- State of models with parallel modules: each rank's own parts, whole ones merged from all, and
--- the ways back. A state is { rank, world, weights = name → tensor, parts = name → { start, shape,
--- whole }, rests = the same of the optimizer's tensors by parameter, optimizer = { steps, counts,
--- tensors } or nil }.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.groups'
local nn = require 'nnscaler.nn'
local sorted = require 'nnscaler.sorted'
local stores = require 'nnscaler.runtime.store'
local tensor = require 'nnscaler.tensor'

local M = {}

local function show(list) return '[' .. table.concat(list, ', ') .. ']' end

-- All ranks, and this one.
local function everybody()
  local world = comm.current()
  if not world then return { 0 }, 0 end
  return groups.all_ranks(), world:rank()
end

-- What the optimizer of this rank updates of the parameters of parallel modules, by tensor; false:
-- nothing.
local function rests_of(model)
  local rests = {}
  for _, entry in ipairs(model:named_modules()) do
    local state = rawget(entry.module, '_parallel')
    local slices = state and state.engine:slices()
    for _, leaf in ipairs(slices and state.engine.parameters or {}) do
      rests[leaf.data] = slices[leaf.name] or false
    end
  end
  return rests
end

--- The store of a model: parameters, then persistent buffers, of this rank.
---@param model nnscaler.nn.Module
---@return nnscaler.Store
local function store_of(model)
  local list, rests = {}, rests_of(model)
  local function add(name, kind, leaf)
    local rest = rests[leaf]
    if rest == nil then rest = stores.slice_of(leaf) end
    list[#list + 1] = { name = name, kind = kind, tensor = leaf, slice = stores.slice_of(leaf),
      rest = rest or nil, data = leaf.materialized and leaf.data or nil }
  end
  for _, entry in ipairs(model:named_parameters()) do add(entry.name, 'parameter', entry.param) end
  for _, entry in ipairs(model:named_buffers()) do
    if entry.persistent then add(entry.name, 'buffer', entry.buffer) end
  end
  return stores.new(list, everybody())
end
M.store_of = store_of

--- The state of this rank: what merge_state_dicts takes one of from each rank.
---@param model nnscaler.nn.Module
---@param optimizer? nnscaler.ParallelOptimizer
---@return table state
function M.state_dict(model, optimizer)
  local ranks, rank = everybody()
  local state = { rank = rank, world = #ranks, weights = {}, parts = {}, rests = {} }
  for _, leaf in ipairs(store_of(model).leaves) do
    state.weights[leaf.name] = leaf.tensor.data:clone()
    state.parts[leaf.name], state.rests[leaf.name] = leaf.slice, leaf.rest
  end
  if optimizer then
    local own = optimizer:state_dict()
    state.optimizer = { steps = own.steps, counts = own.counts, tensors = {} }
    for i, entry in ipairs(own.tensors) do
      state.optimizer.tensors[i] = { parameter = entry.parameter, name = entry.name,
        data = entry.data:clone() }
    end
  end
  return state
end

-- Puts whole tensors together. Ranks that hold the same part must agree.
local Merger = {}
Merger.__index = Merger

function Merger:add(name, part, data, rank)
  local entry = self.entries[name]
  if not entry then
    entry = { whole = tensor.empty(part.whole, { dtype = data.dtype }), parts = {}, filled = 0 }
    self.entries[name] = entry
  end
  local key = stores.key(part)
  local place = stores.region(entry.whole, part)
  if entry.parts[key] then
    if not place:equal(data) then
      fail('state', 'library.merge', ("'%s' differs between ranks %d and %d, which hold the same "
        .. 'part of it'):format(name, entry.parts[key] - 1, rank))
    end
    return
  end
  entry.parts[key], entry.filled = rank + 1, entry.filled + data:numel()
  place:copy_(data)
end

function Merger:finish()
  local whole = {}
  for name, entry in sorted.sorted_pairs(self.entries) do
    if entry.filled ~= entry.whole:numel() then
      fail('state', 'library.merge', ("'%s' has %d of its %d elements in these states"):format(name,
        entry.filled, entry.whole:numel()), 'merge the states of all ranks of a unit')
    end
    whole[name] = entry.whole
  end
  return whole
end

local function merger() return setmetatable({ entries = {} }, Merger) end

--- Merges states of all ranks into the weights and the optimizer state of the model as if it were
--- on one device. Order does not matter; ranks of one unit are enough.
---@param states table[]
---@return table<string, nnscaler.Tensor> weights, table|nil optimizer { steps, counts, tensors }
function M.merge_state_dicts(states)
  local weights, tensors, optimizer = merger(), merger(), nil
  for i, state in ipairs(states) do
    if type(state) ~= 'table' or not state.weights or not state.parts then
      fail('usage', 'library.merge', ('entry %d is not a state; expected what state_dict returns')
        :format(i))
    end
    for name, data in sorted.sorted_pairs(state.weights) do
      weights:add(name, state.parts[name], data, state.rank)
    end
    local own = state.optimizer
    if own then
      optimizer = optimizer or { steps = own.steps, counts = {}, tensors = {} }
      for name, count in sorted.sorted_pairs(own.counts) do optimizer.counts[name] = count end
      for _, entry in ipairs(own.tensors) do
        local part = (state.rests or state.parts)[entry.parameter]
        tensors:add(entry.parameter .. '\n' .. entry.name, part,
          entry.data, state.rank)
      end
    end
  end
  for key, data in sorted.sorted_pairs(tensors:finish()) do
    local parameter, name = key:match '^(.*)\n(.*)$'
    table.insert(optimizer.tensors, { parameter = parameter, name = name, data = data })
  end
  return weights:finish(), optimizer
end

--- Whole parameters and persistent buffers of a model, by name, on every rank. A collective.
---@param model nnscaler.nn.Module
---@return table<string, nnscaler.Tensor>
function M.full_state_dict(model)
  local store, mine = store_of(model), {}
  for i, leaf in ipairs(store.leaves) do
    mine[i] = { key = leaf.name, name = leaf.name, data = leaf.tensor.data }
  end
  local wholes = store:gather(mine)
  -- What every rank holds whole is the model's own tensor.
  for _, entry in ipairs(mine) do
    if rawequal(wholes[entry.key], entry.data) then wholes[entry.key] = entry.data:clone() end
  end
  return wholes
end

local function check_whole(name, data, part)
  if show(data.shape) ~= show(part.whole) then
    fail('state', 'library.load', ("'%s' has shape %s; expected %s"):format(name, show(data.shape),
      show(part.whole)))
  end
end

--- Gives this rank its parts of whole weights, and of a whole optimizer state.
---@param model nnscaler.nn.Module
---@param weights table<string, nnscaler.Tensor> as of a model on one device
---@param optimizer? nnscaler.ParallelOptimizer
---@param state? table { steps, counts, tensors }
function M.load_merged_state_dict(model, weights, optimizer, state)
  local store, own = store_of(model), {}
  for _, leaf in ipairs(store.leaves) do
    local data = weights[leaf.name]
    if data then
      check_whole(leaf.name, data, leaf.slice)
      own[leaf.name] = store:own(leaf.name, data)
    end
  end
  nn.Module.load_state_dict(model, own)
  if not (optimizer and state) then return end
  local counts, tensors = {}, {}
  for _, parameter in ipairs(optimizer.parameters) do
    counts[parameter.name] = state.counts[parameter.name]
  end
  for _, entry in ipairs(state.tensors) do
    local leaf = store.by_name[entry.parameter]
    if leaf then check_whole(entry.parameter, entry.data, leaf.slice) end
  end
  for _, entry in ipairs(store:own_optimizer(state.tensors)) do
    if optimizer.by_name[entry.parameter] then
      entry.data = entry.data:clone()
      tensors[#tensors + 1] = entry
    end
  end
  optimizer:load_state_dict { steps = state.steps, counts = counts, tensors = tensors }
end

-- For each part of this rank: the ranks that hold it, and those of them that have values; of the
-- weights, and of what rests beside them. A collective.
local function holders_of(list)
  local ranks, rank = everybody()
  local mine, keys = {}, {}
  for i, leaf in ipairs(list) do
    keys[i] = { slice = leaf.name .. stores.key(leaf.slice),
      rest = leaf.rest and 'rest ' .. leaf.name .. stores.key(leaf.rest) }
    for _, key in ipairs { keys[i].slice, keys[i].rest } do
      mine[#mine + 1] = { key, leaf.tensor.materialized }
    end
  end
  local all = #ranks > 1 and groups.group(ranks):exchange(base.json_encode(mine))
    or { base.json_encode(mine) }
  local holders, filled = {}, {}
  for r, text in ipairs(all) do
    for _, entry in ipairs(base.json_decode(text)) do
      local key = entry[1]
      holders[key], filled[key] = holders[key] or {}, filled[key] or {}
      table.insert(holders[key], r - 1)
      if entry[2] then table.insert(filled[key], r - 1) end
    end
  end
  for i, leaf in ipairs(list) do
    leaf.holders, leaf.filled = holders[keys[i].slice], filled[keys[i].slice]
    leaf.keepers = leaf.rest and holders[keys[i].rest]
  end
  return rank
end

--- The state of this rank without what a lower rank holds too; a collective. The states of all
--- ranks together have everything once.
---@param model nnscaler.nn.Module
---@param optimizer? nnscaler.ParallelOptimizer
---@return table state
function M.deduped_state_dict(model, optimizer)
  local state, list = M.state_dict(model, optimizer), store_of(model).leaves
  local rank, mine = holders_of(list), {}
  for _, leaf in ipairs(list) do
    if leaf.holders[1] ~= rank then state.weights[leaf.name] = nil end
    mine[leaf.name] = leaf.keepers and leaf.keepers[1] == rank
  end
  if state.optimizer then
    local tensors = {}
    for _, entry in ipairs(state.optimizer.tensors) do
      if mine[entry.parameter] then tensors[#tensors + 1] = entry end
    end
    state.optimizer.tensors = tensors
  end
  return state
end

-- Sends a tensor of the same part from `source` to all that hold it.
local function share_tensor(holders, source, data)
  if #holders == 1 then return end
  local position
  for i, r in ipairs(holders) do
    if r == source then position = i - 1 end
  end
  groups.group(holders):broadcast(data, position)
end

--- Gives every rank the values of those that have some: of each part, the lowest rank's. A
--- collective.
---@param model nnscaler.nn.Module
---@param lazy? boolean what no rank has values of stays without
function M.broadcast_weights(model, lazy)
  local list = store_of(model).leaves
  holders_of(list)
  for _, leaf in ipairs(list) do
    if #leaf.filled == 0 and not lazy then
      fail('state', 'library.broadcast_weights', ("no rank has values of '%s'"):format(leaf.name),
        'materialize the model, or load a state, on the ranks of one unit')
    end
  end
  tensor.no_grad(function()
    for _, leaf in ipairs(list) do
      if #leaf.filled > 0 then
        if not leaf.tensor.materialized then
          leaf.tensor.data = tensor.empty(leaf.tensor.shape, { dtype = leaf.tensor.dtype })
        end
        share_tensor(leaf.holders, leaf.filled[1], leaf.tensor.data)
      end
    end
  end)
end

-- What of a parameter this rank's optimizer updates.
local function kept_of(leaf, parameter)
  local data = parameter.data:detach()
  for d, start in ipairs(leaf.rest.start) do
    data = data:narrow(d - 1, start - leaf.slice.start[d], leaf.rest.shape[d])
  end
  return data
end

--- Takes back what deduped_state_dict gave each rank; a collective.
---@param model nnscaler.nn.Module
---@param state table of this rank
---@param optimizer? nnscaler.ParallelOptimizer
function M.load_deduped_state_dict(model, state, optimizer)
  local list, by_name = store_of(model).leaves, {}
  local rank = holders_of(list)
  for _, leaf in ipairs(list) do
    by_name[leaf.name] = leaf
    local data = state.weights[leaf.name]
    if (leaf.holders[1] == rank) ~= (data ~= nil) or data and show(data.shape)
      ~= show(leaf.slice.shape) then
      fail('state', 'library.load_deduped', ("'%s' lies in another way than when the state of rank "
        .. '%d was taken'):format(leaf.name, state.rank), 'merge_state_dicts makes a state for any '
        .. 'plan')
    end
  end
  tensor.no_grad(function()
    for _, leaf in ipairs(list) do
      local data = state.weights[leaf.name] or tensor.empty(leaf.slice.shape,
        { dtype = leaf.tensor.dtype })
      share_tensor(leaf.holders, leaf.holders[1], data)
      leaf.tensor.data = data:clone()
    end
  end)
  if not (optimizer and state.optimizer) then return end
  local own, tensors = {}, {}
  for _, entry in ipairs(state.optimizer.tensors) do
    own[entry.parameter .. '\n' .. entry.name] = entry.data
  end
  for _, parameter in ipairs(optimizer.parameters) do
    local leaf = by_name[parameter.name]
    for _, name in ipairs(optimizer:slots_of(parameter.name, state.optimizer.counts)) do
      local data = own[parameter.name .. '\n' .. name]
        or kept_of(leaf, parameter):zeros_like { memory_format = 'contiguous_format' }
      share_tensor(leaf.keepers, leaf.keepers[1], data)
      tensors[#tensors + 1] = { parameter = parameter.name, name = name, data = data:clone() }
    end
  end
  optimizer:load_state_dict { steps = state.optimizer.steps, counts = state.optimizer.counts,
    tensors = tensors }
end

return M
