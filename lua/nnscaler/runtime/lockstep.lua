--- Scale units that gather weights together wait for each other in every micro-batch: each runs as
--- many as the one that has most of them, and all run graphs of one structure at one time. Who has
--- no micro-batch of it runs an idle one, whose results count for nothing.
local base = require 'nnscaler._C.base'
local groups = require 'nnscaler.runtime.groups'
local nested = require 'nnscaler.nested'
local tensor = require 'nnscaler.tensor'

local M = {}

-- Micro-batches of all units, those of one place after another; of graphs that differ one by one.
-- Idle ones hold zeros.
local function aligned(engine, items, training)
  local mine = {}
  for k, item in ipairs(items) do
    mine[k] = { structure = item.program.structure, sample = nested.encode(item.sample, {}) }
  end
  local all, count, rounds = {}, 0, {}
  for u, text in ipairs(groups.group(engine.sharing.across):exchange(base.json_encode(mine))) do
    all[u] = base.json_decode(text)
    count = math.max(count, #all[u])
  end
  for k = 1, count do
    local seen = {}
    for _, theirs in ipairs(all) do
      local structure = theirs[k] and theirs[k].structure
      if structure and not seen[structure] then
        seen[structure] = true
        local item = items[k]
        if not item or item.program.structure ~= structure then
          local zeros = nested.decode(theirs[k].sample, {}, tensor.zeros)
          item = engine:prepared({ zeros }, training)[1]
          item.micro, item.idle = k - 1, true
        end
        rounds[#rounds + 1] = item
      end
    end
  end
  return rounds
end

--- What this rank runs in a step. A collective of all ranks.
---@param engine nnscaler.ProgramEngine
---@param items table[] its micro-batches
---@return table[] items, some of them idle
function M.rounds(engine, items)
  local other = 0
  for _, item in ipairs(items) do
    if item.program.structure ~= engine.pipeline.first_graph:structure() then other = 1 end
  end
  local any = engine.sharing:over_all({ #items, other }, 'max')
  if any[2] > 0 then return aligned(engine, items, true) end
  for k = #items + 1, any[1] do
    items[k] = engine:prepared({ engine.template }, true)[1]
    items[k].micro, items[k].idle = k - 1, true
  end
  return items
end

--- What this rank runs for a micro-batch of evaluation. A collective of all ranks.
---@param engine nnscaler.ProgramEngine
---@param item table
---@return table[]
function M.evaluation(engine, item)
  local number = tonumber(item.program.structure:sub(-12), 16)
  local any = engine.sharing:over_all({ number, -number }, 'max')
  if any[1] == -any[2] then return { item } end
  return aligned(engine, { item }, false)
end

return M
