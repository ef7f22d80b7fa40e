--- New contents of buffers: what a micro-batch wrote is what the next one reads; the buffers
--- themselves change at the end of the step. Where scale units run micro-batches side by side, what
--- each micro-batch added is put together in the order of the micro-batches, as one device does:
--- new = decay · old + added.
local C = require 'nnscaler._C.runtime'
local comm = require 'nnscaler.runtime.groups'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.Buffers
---@field list table[] { name, data, persistent, table, key, contents }
local Buffers = {}
Buffers.__index = Buffers

---@param list table[]
---@return nnscaler.Buffers
function M.new(list) return setmetatable({ list = list }, Buffers) end

-- Releases tensors, each once: a micro-batch may write one to several buffers.
local function release(list, kept)
  local gone = kept or {}
  for _, x in ipairs(list) do
    if not gone[x] then
      gone[x] = true
      C.release(x)
    end
  end
end

--- Says how buffers are put together over scale units.
---@param decays table<string, number> by name
---@param across integer[] ranks of the units that hold the same parts
function Buffers:share(decays, across)
  self.across = across
  for _, buffer in ipairs(self.list) do buffer.decay = decays[buffer.name] end
end

--- Takes over what a micro-batch wrote.
---@param read? boolean whether a backward to come may read what was there before
function Buffers:turn(read)
  local old, kept = {}, {}
  for _, buffer in ipairs(self.list) do
    local content = buffer.contents[buffer.key]
    if content then
      if self.across then
        buffer.added = buffer.added or {}
        table.insert(buffer.added, tensor.no_grad(function()
          return content - buffer.table[buffer.key] * buffer.decay
        end))
      end
      old[#old + 1], kept[content] = buffer.pending, true
      buffer.pending, buffer.contents[buffer.key] = content, nil
      buffer.table[buffer.key] = content
    end
  end
  if not read then release(old, kept) end
end

--- Drops what a micro-batch wrote.
function Buffers:drop()
  local dropped = {}
  for _, buffer in ipairs(self.list) do
    dropped[#dropped + 1] = buffer.contents[buffer.key]
    buffer.contents[buffer.key] = nil
  end
  release(dropped)
end

-- What all units added to a buffer: list by micro-batch of lists by unit.
local function gathered(buffer, group, counts)
  local rounds = math.max(unpack(counts))
  local shape, parts = buffer.data.shape, {}
  for k = 1, rounds do
    parts[k] = buffer.added and buffer.added[k] or buffer.data:zeros_like()
  end
  local all = group:all_gather(tensor.stack(parts, 0):contiguous(), 0, rounds * #counts)
  return all:view { #counts, rounds, unpack(shape) }, rounds
end

--- Makes the new contents those of the buffers. A collective where units share them.
---@param read? boolean as for turn
function Buffers:commit(read)
  tensor.no_grad(function()
    if self.across then return self:commit_shared() end
    local done = {}
    for _, buffer in ipairs(self.list) do
      if buffer.pending then
        buffer.data:copy_(buffer.pending)
        done[#done + 1] = buffer.pending
        buffer.table[buffer.key], buffer.pending = buffer.data, nil
      end
    end
    if not read then release(done) end
  end)
end

function Buffers:commit_shared()
  local group = comm.group(self.across)
  for _, buffer in ipairs(self.list) do
    if buffer.decay then
      local mine = tensor.tensor({ buffer.added and #buffer.added or 0 }, { dtype = 'int64' })
      local counts = group:all_gather(mine, 0, #self.across):tolist()
      if math.max(unpack(counts)) > 0 then
        local all, rounds = gathered(buffer, group, counts)
        for k = 1, rounds do
          for u = 1, #counts do
            if k <= counts[u] then
              buffer.data:mul_(buffer.decay):add_(all:select(0, u - 1):select(0, k - 1))
            end
          end
        end
      end
    end
  end
  self:reset()
end

--- Forgets what was not committed: a step that failed leaves buffers as they were before it.
function Buffers:reset()
  for _, buffer in ipairs(self.list) do
    buffer.table[buffer.key], buffer.pending, buffer.added = buffer.data, nil, nil
    buffer.contents[buffer.key] = nil
  end
end

return M
