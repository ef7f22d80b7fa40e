--- Which parameters a step has gradients of, where graphs after the first one read other weights:
--- all ranks treat a parameter alike, as one device does.
local C = require 'nnscaler._C.runtime'
local fields = require 'nnscaler.runtime.fields'
local groups = require 'nnscaler.runtime.groups'
local reducer = require 'nnscaler.runtime.reducer'
local tensor = require 'nnscaler.tensor'

local M = {}

--- How many addends of each gradient a program makes, and whether it has others than the first one.
---@param program nnscaler.Program
---@param first table<string, integer>|nil of the first program
---@return table<string, integer> addends by name, of those that have some
---@return boolean other
function M.addends(program, first)
  local addends, other = {}, false
  for _, leaf in ipairs(program:parameters()) do
    if leaf.addends > 0 then addends[leaf.name] = leaf.addends end
    other = other or first ~= nil and (first[leaf.name] ~= nil) ~= (leaf.addends > 0)
  end
  return addends, other
end

--- Names of all trainable parameters, alike on all ranks.
---@param model nnscaler.nn.Module
---@return string[]
function M.trainable(model)
  local names = {}
  for _, entry in ipairs(model:named_parameters()) do
    if entry.param.requires_grad then names[#names + 1] = entry.name end
  end
  return names
end

--- Which of the parameters have gradients on any rank. A collective of all ranks.
---@param shared nnscaler.Sharing
---@param names string[]
---@param has fun(name: string): boolean on this rank
---@return table<string, boolean>
function M.agree(shared, names, has)
  local flags, any = {}, {}
  for i, name in ipairs(names) do flags[i] = has(name) and 1 or 0 end
  for i, flag in ipairs(shared:over_all(flags, 'max')) do any[names[i]] = flag > 0 end
  return any
end

--- Drops gradients that the reducer has made of nothing on all ranks, and sums those that it does
--- not know. A collective of all ranks.
---@param engine nnscaler.ProgramEngine after the reducer has finished
function M.settle(engine)
  local version = engine.fields and engine.fields.current or ''
  local everybody = engine.sharing.everybody
  fields.compare(groups.group(everybody):exchange(version), everybody)
  local sums, places, shared = engine.reducer, engine.places, engine.sharing
  local any = M.agree(shared, engine.trainable, function(name)
    local place = places[name]
    return place and place.table[place.key] and not sums.absent[name]
  end)
  for _, name in ipairs(engine.trainable) do
    local place, share = places[name], sums.shares[name]
    if place and not any[name] and place.table[place.key] then
      C.release(place.table[place.key])
      place.table[place.key] = nil
    elseif place and any[name] and not sums:knows(name) then
      local gradient = sums:gradient(name)
      if share.reduce then
        tensor.no_grad(function() reducer.sum({ name = name, ranks = share.reduce }, gradient) end)
      end
    end
  end
end

return M
