--- Casts of weights that all micro-batches of a step read: each beside its weight in the tree that
--- programs walk, from the first micro-batch to the last, since the step changes weights.
local C = require 'nnscaler._C.runtime'
local tree = require 'nnscaler.runtime.tree'

local M = {}

local function drop(engine, program)
  for _, name in ipairs(program.casts) do
    local parent, key = tree.place(engine.tensors, name)
    if parent[key] then C.release(parent[key]) end
    parent[key] = nil
  end
end

--- Makes those of a program, unless they are there. What another program of the step has under the
--- same name is the same, and goes: the memory of both is not there at one time.
---@param engine nnscaler.ProgramEngine
---@param program table of the engine
function M.make(engine, program)
  if not program.make_casts or engine.casts[program] then return end
  drop(engine, program)
  C.run(program.make_casts, engine.tensors)
  engine.casts[program] = true
end

--- Drops all of them.
---@param engine nnscaler.ProgramEngine
function M.drop(engine)
  for program in next, engine.casts do drop(engine, program) end
  engine.casts = {}
end

return M
