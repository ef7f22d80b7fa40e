--- The several ranks of a run, as the program engine needs them: the plan of the job's policy, this
--- rank's parts of weights, sums of gradients and losses over ranks.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local fail = require 'nnscaler.fail'
local fields = require 'nnscaler.runtime.fields'
local rank_zero = require 'nnscaler.runtime.rank_zero'
local groups = require 'nnscaler.runtime.groups'
local options = require 'nnscaler.options'
local others = require 'nnscaler.runtime.others'
local sorted = require 'nnscaler.sorted'
local stages = require 'nnscaler.runtime.stages'
local store = require 'nnscaler.runtime.store'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.Sharing
---@field rank integer
---@field micro_batches integer of a unit, a step
---@field plan userdata|nil set by the first training graph
---@field stages nnscaler.Stages|nil with the plan
local Sharing = {}
Sharing.__index = Sharing

--- Returns what several ranks need, or nil when the job has one rank and one device.
---@param job table|nnscaler.Options
---@return nnscaler.Sharing|nil
function M.new(job)
  local world = comm.current()
  local size = world and world:size() or 1
  local sizes = options.of(job, size)
  local plan_ngpus, runtime_ngpus = sizes.plan_ngpus, sizes.runtime_ngpus
  if size == 1 and plan_ngpus == 1 and runtime_ngpus == 1 then
    if sizes.whole or job.eager then return nil end
    world = world or comm.connect { backend = 'local' } -- a policy may recompute on one device
  end
  if runtime_ngpus ~= size then
    fail('usage', 'runtime.ranks', ('compute_config.runtime_ngpus is %d; the run has %d ranks')
      :format(runtime_ngpus, size), 'start as many ranks as runtime_ngpus: nnscaler run -n '
      .. runtime_ngpus)
  end
  local self = setmetatable({ rank = world:rank(), size = size,
    plan_ngpus = plan_ngpus, runtime_ngpus = runtime_ngpus,
    micro_batches = sizes.micro_batches }, Sharing)
  -- Ranks with the same place in every scale unit.
  self.across = {}
  for first = 0, size - 1, plan_ngpus do
    self.across[#self.across + 1] = first + self.rank % plan_ngpus
  end
  self.everybody = groups.all_ranks()
  self.units = size / plan_ngpus
  self.unit = math.floor(self.rank / plan_ngpus)
  self.together = {} -- the ranks of this scale unit
  for d = 0, plan_ngpus - 1 do self.together[d + 1] = self.unit * plan_ngpus + d end
  return self
end

--- Runs `work(beat)` on rank 0, however long it takes, and gives its result to all.
---@param work fun(beat: fun()): string
---@return string
function Sharing:of_rank_zero(work)
  return rank_zero.run(self.everybody, self.rank, work, self.beat_s)
end

--- The plan for a graph: of the first one, rank 0 makes it for all; see others.plan.
---@param graph userdata nnscaler.Graph
---@param line nnscaler.Pipeline
---@return userdata plan
function Sharing:plan_for(graph, line)
  if self.plan then
    return others.plan(self, graph, function(beat) return line:ask_policy(graph, beat) end)
  end
  local text = self:of_rank_zero(function(beat) return line:make_plan(graph, beat):json() end)
  if not line.plan then line:use_plan(graph, text) end
  self.plan = line.plan
  local hashes = groups.group(self.everybody):exchange(graph:hash() .. ' ' .. self.plan:hash())
  for r, hash in ipairs(hashes) do
    if hash ~= hashes[1] then
      fail('communication', 'runtime.plan', ('rank %d made another graph or plan than rank 0')
        :format(r - 1), 'all ranks must run the same recipe, code and versions')
    end
  end
  self.stages = stages.new(self.plan, self.rank % self.plan_ngpus)
  -- Scale units wait for each other in every micro-batch.
  self.lockstep = self.plan:info().zero >= 2 and self.units > 1
  return self.plan
end

--- Makes ready for a program of the plan: joins its groups.
---@param ranks integer[][] groups of the program, in the order that all ranks agree on
function Sharing:join(ranks)
  for _, group in ipairs(ranks) do groups.group(group) end
end

--- Agrees with the others which parameters have gradients: a rank may hold one that only another
--- rank's stage has a gradient for.
---@param shares { name: string, addends: integer }[] of this rank's program
---@return string[] names
function Sharing:agree_gradients(shares)
  local mine = {}
  for _, share in ipairs(shares) do
    if share.addends > 0 then mine[#mine + 1] = share.name end
  end
  local any = {}
  for _, text in ipairs(groups.group(self.everybody):exchange(base.json_encode(mine))) do
    for _, name in ipairs(base.json_decode(text)) do any[name] = true end
  end
  return sorted.sorted_keys(any)
end

-- What `of` says of each tensor of a micro-batch, and its other values, as text.
local function told(sample, of)
  local parts = {}
  local function walk(value)
    if type(value) == 'userdata' then
      parts[#parts + 1] = of(value)
    elseif type(value) == 'table' then
      for key, item in sorted.sorted_pairs(value) do
        parts[#parts + 1] = tostring(key)
        walk(item)
      end
    else
      parts[#parts + 1] = tostring(value)
    end
  end
  walk(sample)
  return table.concat(parts, ' ')
end

local function shape_of(x) return ('%s[%s]'):format(x.dtype, table.concat(x.shape, ', ')) end

-- What of that is shapes, or of a micro-batch that is missing.
local function shapes_told(text) return text and text:match '^[^\n]*' or 'none' end

--- Raises when ranks of a scale unit are about to train on different micro-batches: of other shapes
--- or, compared in the first three steps and in every hundredth, with other contents.
---@param samples any[] of this step
---@param step integer
---@param version? string of the model's fields
function Sharing:check_samples(samples, step, version)
  if self.plan_ngpus == 1 then return end
  local contents = step < 3 or step % 100 == 0
  local mine, hash = {}, require('nnscaler._C.train').fingerprint
  for k, sample in ipairs(samples) do
    mine[k] = told(sample, shape_of)
    if contents then mine[k] = mine[k] .. '\n' .. base.hash(told(sample, hash)) end
  end
  local all = groups.group(self.together):exchange(base.json_encode {
    version = version or '', samples = base.json_encode(mine) })
  local versions = {}
  for r, text in ipairs(all) do
    local said = base.json_decode(text)
    all[r], versions[r] = said.samples, said.version
  end
  fields.compare(versions, self.together)
  for r, text in ipairs(all) do
    if text ~= all[1] then
      local first, theirs, k = base.json_decode(all[1]), base.json_decode(text), 1
      while first[k] == theirs[k] do k = k + 1 end
      local a, b = shapes_told(first[k]), shapes_told(theirs[k])
      fail('data', 'runtime.sample', ('step %d: rank %d has another micro-batch %d than rank %d%s; '
        .. 'expected one sample on all ranks of a scale unit'):format(step + 1, self.together[r],
        k - 1, self.together[1], a == b and '' or (': %s and not %s'):format(b, a)),
        'the loader must not depend on the rank, only on the unit: same files, seed and order')
    end
  end
end

--- Sums numbers over all ranks, or takes the greatest of each.
---@param numbers number[]
---@param how? 'sum'|'max'
---@return number[]
function Sharing:over_all(numbers, how)
  local t = tensor.tensor(numbers, { dtype = 'float64' })
  return groups.group(self.everybody):all_reduce(t, how or 'sum'):tolist()
end

--- Waits for all ranks.
function Sharing:barrier() groups.group(self.everybody):barrier() end

--- How many ranks hold this part of a parameter.
---@param name string
---@return integer
function Sharing:holders(name) return self.parts[name].holders end

--- This rank's part of a whole tensor.
---@param name string
---@param whole nnscaler.Tensor
---@return nnscaler.Tensor
function Sharing:part(name, whole)
  local leaf = self.parts[name]
  return leaf.start and store.region(whole, store.slice_of(leaf)):contiguous() or whole
end

return M
