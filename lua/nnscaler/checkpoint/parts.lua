--- Tensors that stand in several slices: whether they cover the whole, and reading what of them
--- meets a region.
local release = require('nnscaler._C.runtime').release
local tensor = require 'nnscaler.tensor'

local M = {}

-- Borders of the slices along a dimension, in order.
local function borders(entry, d)
  local seen, list = {}, {}
  local function add(x)
    if not seen[x] then
      seen[x] = true
      list[#list + 1] = x
    end
  end
  add(0)
  add(entry.shape[d])
  for _, part in ipairs(entry.slices) do
    add(part.slice[d][1])
    add(part.slice[d][2])
  end
  table.sort(list)
  return list
end

local function is_slice(part, shape)
  if type(part) ~= 'table' or type(part.file) ~= 'string' or part.file:find '[/\\]'
    or type(part.slice) ~= 'table' or #part.slice ~= #shape then
    return false
  end
  for d, range in ipairs(part.slice) do
    if type(range) ~= 'table' or type(range[1]) ~= 'number' or type(range[2]) ~= 'number'
      or range[1] < 0 or range[2] < range[1] or range[2] > shape[d] then
      return false
    end
  end
  return true
end

-- Whether each cell between the borders lies in a slice: of those left along the dimensions before.
local function covers(entry, at, d, parts)
  if d > #entry.shape then return #parts > 0 end
  local list = borders(entry, d)
  for i = 1, #list - 1 do
    at[d] = list[i]
    local left = {}
    for _, part in ipairs(parts) do
      if at[d] >= part.slice[d][1] and at[d] < part.slice[d][2] then left[#left + 1] = part end
    end
    if not covers(entry, at, d + 1, left) then return false end
  end
  return true
end

--- Why the slices of an entry of a manifest are not the whole tensor, or nil.
---@param entry table
---@return string|nil
function M.problem(entry)
  if type(entry.shape) ~= 'table' or type(entry.slices) ~= 'table' or #entry.slices == 0 then
    return 'has no slices'
  end
  for _, part in ipairs(entry.slices) do
    if not is_slice(part, entry.shape) then return 'has a slice that is none of it' end
  end
  if not covers(entry, {}, 1, entry.slices) then return 'has slices that leave a part of it out' end
  return nil
end

--- Shape of a slice.
---@param part table
---@return integer[]
function M.shape(part)
  local shape = {}
  for d, range in ipairs(part.slice) do shape[d] = range[2] - range[1] end
  return shape
end

-- What a slice and a region have in common, or nil.
local function meet(part, region)
  local list = {}
  for d, range in ipairs(region) do
    local first, stop = math.max(range[1], part.slice[d][1]), math.min(range[2], part.slice[d][2])
    if first >= stop then return nil end
    list[d] = { first, stop }
  end
  return list
end

local function from(ranges, offsets)
  local list = {}
  for d, range in ipairs(ranges) do
    list[d] = { range[1] - offsets[d][1], range[2] - offsets[d][1] }
  end
  return list
end

-- Copies to a region. Views that the collector has not met yet would keep the whole in memory.
local function copy_into(out, ranges, x)
  local views = { out }
  for d, range in ipairs(ranges) do
    views[d + 1] = views[d]:narrow(d - 1, range[1], range[2] - range[1])
  end
  views[#views]:copy_(x)
  release(unpack(views, 2))
end

--- Reads a region of a tensor; only the bytes of it.
---@param entry table of the manifest
---@param region integer[][] one { start, stop } a dimension
---@param open fun(part: table): userdata, string the file of a slice, and its name there
---@return nnscaler.Tensor
function M.read(entry, region, open)
  local out
  for _, part in ipairs(entry.slices) do
    local common = meet(part, region)
    if common then
      local file, key = open(part)
      local x = file:read(key, from(common, part.slice))
      if table.concat(x.shape, ',') == table.concat(M.shape { slice = region }, ',') then
        return x
      end
      out = out or tensor.empty(M.shape { slice = region }, { dtype = entry.dtype })
      copy_into(out, from(common, region), x)
      release(x)
    end
  end
  return out or tensor.empty(M.shape { slice = region }, { dtype = entry.dtype })
end

return M
