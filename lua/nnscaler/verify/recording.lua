--- Reads recordings of runs, which record.lua writes.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local graphs = require 'nnscaler._C.graph'
local store = require 'nnscaler.runtime.store'
local tensor = require 'nnscaler.tensor'

--- format: the version of what is written.
local M = { format = 1 }

local kMostRanks = 65536

---@class nnscaler.verify.Recording
---@field folder string
---@field info table what was run, as the recorder says it
---@field steps integer
local Recording = {}
Recording.__index = Recording

--- Puts a tensor together from its parts: cuts beside each other, addends on each other, what
--- several ranks hold once.
---@param parts { read: (fun(): nnscaler.Tensor), tensor: string|nil, start: integer[],
---  shape: integer[], addend?: integer, addends?: integer }[]
---@param shape integer[] of the whole
---@return nnscaler.Tensor|nil nil where parts are missing
function M.join(parts, shape)
  local own, seen, missing = {}, {}, 1
  for _, size in ipairs(shape) do missing = missing * size end
  for _, part in ipairs(parts) do
    local key = store.key(part) .. (part.addend or 0)
    if part.tensor and not seen[key] then
      local data = part.read()
      own[#own + 1], seen[key] = { part = part, data = data }, true
      missing = missing - data:numel() / (part.addends or 1)
    end
  end
  if #own == 0 or math.abs(missing) >= 0.5 then return nil end
  local whole = tensor.zeros(shape, { dtype = own[1].data.dtype })
  for _, item in ipairs(own) do store.region(whole, item.part):add_(item.data) end
  return whole
end

local function json(path)
  local ok, value = pcall(function()
    return base.json_decode(base.file_read(path, 'record.read'))
  end)
  if ok and type(value) == 'table' then return value end
  return fail('state', 'record.read', ("'%s' cannot be read: %s"):format(path,
    ok and 'it holds no table' or tostring(value)),
    'record the run again: nnscaler run JOB --record FOLDER')
end

--- Whether a path is a recording.
---@param path string
---@return boolean
function M.is_one(path) return base.file_exists(path .. '/recording.json') == 'file' end

-- Whether all ranks have written a step.
local function is_there(self, number)
  for rank = 0, self.info.ranks - 1 do
    if not base.file_exists(('%s/step.%d.%d.json'):format(self.folder, number, rank)) then
      return false
    end
  end
  return true
end

--- Opens a recording; of another format it is refused.
---@param folder string
---@return nnscaler.verify.Recording
function M.open(folder)
  local info = json(folder .. '/recording.json')
  if info.format ~= M.format then
    fail('state', 'record.read', ("'%s' is a recording of format %s, by nnscaler %s; expected "
      .. 'format %d'):format(folder, tostring(info.format), tostring(info.version), M.format),
      'record the run again with this version')
  end
  local ranks = info.ranks
  if type(ranks) ~= 'number' or ranks % 1 ~= 0 or ranks < 1 or ranks > kMostRanks then
    fail('state', 'record.read', ("'%s' says of its ranks: %s; expected how many there are"):format(
      folder, tostring(ranks)), 'record the run again: nnscaler run JOB --record FOLDER')
  end
  info.changes = info.changes or {}
  local self = setmetatable({ folder = folder, info = info, steps = 0, graphs = {} }, Recording)
  while is_there(self, self.steps + 1) do self.steps = self.steps + 1 end
  if self.steps == 0 then
    fail('state', 'record.read', ("'%s' holds no step that all %d ranks have written")
      :format(folder, info.ranks), 'record the run again: nnscaler run JOB --record FOLDER')
  end
  return self
end

-- The smallest global batch, of at least so many samples, that units of both runs can share out.
local function common_batch(a, b)
  local units = a.units
  while units % b.units ~= 0 do units = units + a.units end
  local unit = a.micro_batch_size * units
  return math.ceil(math.max(a.global_batch_size, b.global_batch_size) / unit) * unit
end

--- Raises unless steps and micro-batches of two runs take the same samples.
---@param a table info of the first run
---@param b table info of the second run
function M.check_alike(a, b)
  for _, key in ipairs { 'global_batch_size', 'micro_batch_size' } do
    if a[key] ~= b[key] then
      fail('usage', 'diff.batch', ('%s is %d in A and %d in B; expected the same: a value is '
        .. 'compared micro-batch by micro-batch'):format(key, a[key], b[key]),
        ('set micro_batch_size=%d global_batch_size=%d for both'):format(a.micro_batch_size,
          common_batch(a, b)))
    end
  end
  if a.first ~= b.first then
    fail('usage', 'diff.first', ('A begins after %d steps and B after %d; expected the same: '
      .. 'samples and random numbers go by the step'):format(a.first, b.first),
      'give both the same checkpoint.resume_from, or neither one')
  end
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
      known.seen[rank] = told.seen or {}
      for _, sight in ipairs(known.seen[rank]) do
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
---@return { parts: nnscaler.verify.Part[], loss: number|nil }
function Recording:step(number)
  local out = { parts = {} }
  for rank = 0, self.info.ranks - 1 do
    local stem = ('%s/step.%d.%d'):format(self.folder, number, rank)
    local told = json(stem .. '.json')
    if rank == 0 then out.loss = told.loss end
    local file
    for _, part in ipairs(told.parts) do
      part.rank = rank
      for _, field in ipairs { 'start', 'shape', 'whole' } do
        part[field] = part.name and (part[field] or {}) or nil -- [] has no kind in JSON
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

--- Parts of a step that have names, of one kind, by name in the order of first sight.
---@param step { parts: nnscaler.verify.Part[] }
---@param kind 'input'|'gradient'|'weight'
---@param micro? integer of inputs
---@return string[] names
---@return table<string, nnscaler.verify.Part[]>
function M.named(step, kind, micro)
  local order, by_name = {}, {}
  for _, part in ipairs(step.parts) do
    if part.kind == kind and part.micro == micro then
      if not by_name[part.name] then
        order[#order + 1], by_name[part.name] = part.name, {}
      end
      table.insert(by_name[part.name], part)
    end
  end
  return order, by_name
end

--- Whole weights and buffers as they were before a step.
---@param number integer of the step, from 1
---@return { name: string, data: nnscaler.Tensor|nil }[] data: nil where parts are missing
function Recording:weights(number)
  local out = {}
  local order, by_name = M.named(self:step(number - 1), 'weight')
  for i, name in ipairs(order) do
    out[i] = { name = name, data = M.join(by_name[name], by_name[name][1].whole) }
  end
  return out
end

return M
