--- Which parameters a step has gradients of, where graphs after the first one read other weights:
--- all ranks treat a parameter alike, as one device does.
local fields = require 'nnscaler.runtime.fields'
local groups = require 'nnscaler.runtime.groups'

local M = {}

--- Of which parameters a program makes gradients, and whether of others than the first one.
---@param program nnscaler.Program
---@param first table<string, boolean>|nil of the first program
---@return table<string, boolean> made by name
---@return boolean other
function M.made(program, first)
  local made, other = {}, false
  for _, leaf in ipairs(program:parameters()) do
    if leaf.addends > 0 then made[leaf.name] = true end
    other = other or first ~= nil and (first[leaf.name] ~= nil) ~= (leaf.addends > 0)
  end
  return made, other
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

--- Drops gradients that sums have made of nothing on all ranks, and sums those that the step of the
--- first program leaves out. A collective of all ranks.
---@param engine nnscaler.ProgramEngine after its sums
function M.settle(engine)
  local version = engine.fields and engine.fields.current or ''
  local everybody = engine.sharing.everybody
  fields.compare(groups.group(everybody):exchange(version), everybody)
  engine.states:settle(M.agree(engine.sharing, engine.trainable, function(name)
    return engine.states:has(name)
  end))
end

return M
