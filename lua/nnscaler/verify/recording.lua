--- Reads what record.lua writes.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local graphs = require 'nnscaler._C.graph'
local record = require 'nnscaler.verify.record'
local store = require 'nnscaler.runtime.store'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.verify.Recording
---@field folder string
---@field info table what was run, as the recorder says it
---@field steps integer
local Recording = {}
Recording.__index = Recording

--- Puts a tensor together from its parts: cuts beside each other, addends on each other, what
--- several ranks hold once.
---@param parts { rank: integer, read: (fun(): nnscaler.Tensor), start: integer[], shape: integer[],
---  addend?: integer, addends?: integer }[]
---@param shape integer[] of the whole
---@return nnscaler.Tensor|nil nil where parts are missing
function M.join(parts, shape)
  local whole, seen, elements = nil, {}, 0
  for _, part in ipairs(parts) do
    local key = store.key(part) .. (part.addend or 0)
    if part.tensor and not seen[key] then
      local data = part.read()
      whole = whole or tensor.zeros(shape, { dtype = data.dtype })
      seen[key] = true
      elements = elements + data:numel() / (part.addends or 1)
      store.region(whole, part):add_(data)
    end
  end
  return whole and math.abs(elements - whole:numel()) < 0.5 and whole or nil
end

local function json(path)
  local ok, value = pcall(function()
    return base.json_decode(base.file_read(path, 'diff.recording'))
  end)
  if ok and type(value) == 'table' then return value end
  return fail('state', 'diff.recording', ("'%s' cannot be read: %s"):format(path,
    ok and 'no table' or tostring(value)), 'record the run again: nnscaler run … --record FOLDER')
end

--- Whether a path is a recording.
---@param path string
---@return boolean
function M.is_one(path) return base.file_exists(path .. '/recording.json') == 'file' end

--- Opens a recording; of a later version it is refused.
---@param folder string
---@return nnscaler.verify.Recording
function M.open(folder)
  local info = json(folder .. '/recording.json')
  if info.format ~= record.format then
    fail('state', 'diff.recording', ("'%s' is a recording of format %s, by nnscaler %s; expected "
      .. 'format %d'):format(folder, tostring(info.format), tostring(info.version), record.format),
      'record the run again with this version')
  end
  local self = setmetatable({ folder = folder, info = info, steps = 0, graphs = {} }, Recording)
  while base.file_exists(('%s/step.%d.0.json'):format(folder, self.steps + 1)) do
    self.steps = self.steps + 1
  end
  return self
end

--- A graph, and by rank what the results of its calls are.
---@param hash string
---@return { graph: userdata, nodes: nnscaler.GraphNode[], values: nnscaler.GraphValue[],
---  seen: table<integer, nnscaler.Sight[]> }
function Recording:graph(hash)
  local known = self.graphs[hash]
  if known then return known end
  known = { seen = {} }
  for rank = 0, self.info.ranks - 1 do
    local path = ('%s/graph.%s.%d.json'):format(self.folder, hash, rank)
    if base.file_exists(path) then
      local told = json(path)
      known.graph = known.graph or graphs.from_json(told.graph)
      known.seen[rank] = told.seen
      for _, sight in ipairs(told.seen) do
        sight.start, sight.shape = sight.start or {}, sight.shape or {} -- [] has no kind in JSON
      end
    end
  end
  known.nodes, known.values = known.graph:nodes(), known.graph:values()
  self.graphs[hash] = known
  return known
end

--- A step: the parts of all ranks, each with `rank` and `read()`, which gives its tensor.
---@param number integer from 1; 0: the first weights
---@return { parts: nnscaler.verify.Part[], loss: number|nil, weight: number|nil, gnorm: number|nil }
function Recording:step(number)
  local out = { parts = {} }
  for rank = 0, self.info.ranks - 1 do
    local stem = ('%s/step.%d.%d'):format(self.folder, number, rank)
    local told = json(stem .. '.json')
    if rank == 0 then out.loss, out.weight, out.gnorm = told.loss, told.weight, told.gnorm end
    local file
    for _, part in ipairs(told.parts) do
      part.rank = rank
      for _, field in ipairs { 'start', 'shape', 'whole' } do
        part[field] = part.kind ~= 'value' and (part[field] or {}) or nil -- [] has no kind in JSON
      end
      part.read = function()
        file = file or C.read_safetensors(stem .. '.safetensors')
        return file:read(part.tensor)
      end
      out.parts[#out.parts + 1] = part
    end
  end
  return out
end

--- Whole weights and buffers as they were before a step.
---@param number integer of the step, from 1
---@return { name: string, data: nnscaler.Tensor }[]
function Recording:weights(number)
  local order, by_name, out = {}, {}, {}
  for _, part in ipairs(self:step(number - 1).parts) do
    if part.kind == 'weight' then
      if not by_name[part.name] then
        order[#order + 1], by_name[part.name] = part.name, {}
      end
      table.insert(by_name[part.name], part)
    end
  end
  for i, name in ipairs(order) do
    out[i] = { name = name, data = M.join(by_name[name], by_name[name][1].whole) }
  end
  return out
end

return M
