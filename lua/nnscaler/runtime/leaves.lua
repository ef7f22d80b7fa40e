--- Parameters and buffers as a program engine holds them: one tensor each, or this rank's part of
--- it, in nested tables that programs index by module path.
local buffers = require 'nnscaler.runtime.buffers'
local tree = require 'nnscaler.runtime.tree'
local weights = require 'nnscaler.runtime.weights'

local M = {}

local function the_leaf(_, leaf) return leaf end

--- Fills the engine's tables.
---@param engine nnscaler.ProgramEngine
---@param take? fun(name: string, leaf: nnscaler.Tensor): nnscaler.Tensor|nil gives the tensor of a
---  leaf, or nil when it is not this rank's; the leaf itself is used unless told
function M.add(engine, take)
  local model = engine.source
  engine.tensors, engine.gradients, engine.contents = {}, {}, {}
  engine.parameters, engine.buffers, engine.places = {}, {}, {}
  take = take or the_leaf
  for _, entry in ipairs(model:named_parameters()) do
    local data = take(entry.name, entry.param)
    if data then
      local i = #engine.parameters + 1
      engine.parameters[i] = {
        name = entry.name, data = data, requires_grad = entry.param.requires_grad,
      }
      local parent, key = tree.place(engine.tensors, entry.name)
      parent[key] = data
      local gradients = tree.place(engine.gradients, entry.name)
      engine.places[i] = { table = gradients, key = key }
      engine.places[entry.name] = engine.places[i]
    end
  end
  for _, entry in ipairs(model:named_buffers()) do
    local data = take(entry.name, entry.buffer)
    if data then
      local parent, key = tree.place(engine.tensors, entry.name)
      parent[key] = data
      engine.buffers[#engine.buffers + 1] = {
        name = entry.name, data = data, persistent = entry.persistent ~= false,
        table = parent, key = key, contents = tree.place(engine.contents, entry.name),
      }
    end
  end
  engine.buffer_contents = buffers.new(engine.buffers)
end

-- Draws a part of a weight as the whole would be drawn.
local function draw(engine, parameter, start, shape)
  local data = parameter:draw_part(engine.options.seed, start, shape, engine.options.device)
  if parameter.requires_grad then data:requires_grad_(true) end
  return data
end

--- Fills the engine's tables with this rank's parts, as `engine.take` makes them or drawn, and
--- makes ready for sums of their gradients.
---@param engine nnscaler.ProgramEngine
function M.add_parts(engine)
  local shared, take = engine.sharing, engine.take or draw
  local parts = shared and shared.parts
  M.add(engine, function(name, parameter)
    local part = parts and parts[name]
    if parts and not part then -- of another stage
      if not engine.take then weights.show(shared, parameter) end
      return nil
    end
    local shape = part and part.shape or parameter.shape
    local start = part and part.start
    if not start then
      start = {}
      for d = 1, #shape do start[d] = 0 end
    end
    local data = take(engine, parameter, start, shape)
    if shared and not engine.take then weights.show(shared, parameter, data, start) end
    return data
  end)
  if not shared then return end
  if shared.units > 1 then
    local decays = {}
    for _, leaf in ipairs(engine.buffer_shares) do decays[leaf.name] = leaf.decay end
    engine.buffer_contents:share(decays, shared.across)
  end
end

--- Gives every rank the weights and buffers of the first rank that holds them.
---@param engine nnscaler.ProgramEngine
function M.broadcast(engine)
  local all = {}
  for _, list in ipairs { engine.parameters, engine.buffers } do
    for _, leaf in ipairs(list) do all[#all + 1] = leaf end
  end
  weights.broadcast(engine.sharing, all)
end

return M
