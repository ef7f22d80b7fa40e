--- Parts of weights out of files that hold them in another shape: the same elements in the same
--- order (`file_shapes` of a module). Only what the part needs is read.
local ops = require 'nnscaler.ops'
local release = require('nnscaler._C.runtime').release

local M = {}

local function same(a, b) return table.concat(a, ',') == table.concat(b, ',') end

-- Ranges of the part that begins at `start`.
local function ranges(start, shape)
  local slice = {}
  for d, first in ipairs(start) do slice[d] = { first, first + shape[d] } end
  return slice
end

--- Puts pieces on each other; no more than they and the whole are in memory.
---@param count integer
---@param read fun(i: integer): nnscaler.Tensor piece number i, from 0
---@return nnscaler.Tensor
function M.stack(count, read)
  local parts = {}
  for i = 0, count - 1 do parts[i + 1] = read(i) end
  local whole = ops.aten.stack(parts, 0)
  release(unpack(parts)) -- the collector would come to them late
  return whole
end

-- The part of a weight [n, rows, …] whose file has [n · rows, …]: a slice for each of the n.
local function stacked(source, entry, whole, start, shape)
  return M.stack(shape[1], function(i)
    local slice = ranges({ unpack(start, 2) }, { unpack(shape, 2) })
    local before = (start[1] + i) * whole[2]
    slice[1] = { before + slice[1][1], before + slice[1][2] }
    return source:read(entry.name, slice)
  end)
end

--- Reads a weight, or the part of it that begins at `start`, in the model's shape.
---@param source { read: fun(self: any, name: string, slice?: integer[][]): nnscaler.Tensor }
---@param entry { name: string, shape: integer[] } of the file
---@param whole integer[] the weight's shape in the model
---@param start? integer[] nil: the whole
---@param shape? integer[] of the part
---@return nnscaler.Tensor
function M.read(source, entry, whole, start, shape)
  if not start then
    local x = source:read(entry.name)
    return same(entry.shape, whole) and x or x:view(whole)
  end
  if same(entry.shape, whole) then
    return source:read(entry.name, ranges(start, shape))
  end
  if #whole == #entry.shape + 1 and whole[1] * whole[2] == entry.shape[1] and shape[1] > 0 then
    return stacked(source, entry, whole, start, shape)
  end
  local x = source:read(entry.name):view(whole)
  for d, first in ipairs(start) do x = x:narrow(d - 1, first, shape[d]) end
  return x
end

return M
