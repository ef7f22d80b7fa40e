--- The several ranks of a run, as the program engine needs them: the plan of the job's policy, this
--- rank's parts of weights, sums of gradients and losses over ranks.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.comm'
local policies = require 'nnscaler.policies'
local stages = require 'nnscaler.runtime.stages'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.Sharing
---@field rank integer
---@field plan userdata|nil set by the first training graph
local Sharing = {}
Sharing.__index = Sharing

--- Returns what several ranks need, or nil when the job has one rank and one device.
---@param job table compute_config, pas_policy, pas_config
---@return nnscaler.Sharing|nil
function M.new(job)
  local world = comm.current()
  local config = job.compute_config or {}
  local size = world and world:size() or 1
  local whole = job.pas_policy == nil or job.pas_policy == 'dp' or job.pas_policy == 'fsdp'
  local plan_ngpus = config.plan_ngpus or (whole and 1) or policies.devices(job.pas_policy) or size
  local runtime_ngpus = config.runtime_ngpus or size
  if size == 1 and plan_ngpus == 1 and runtime_ngpus == 1 then
    if whole or job.eager then return nil end
    world = world or comm.connect { backend = 'local' } -- a policy may recompute on one device
  end
  if runtime_ngpus ~= size then
    fail('usage', 'runtime.ranks', ('compute_config.runtime_ngpus is %d; the run has %d ranks')
      :format(runtime_ngpus, size), 'start as many ranks as runtime_ngpus: nnscaler run -n '
      .. runtime_ngpus)
  end
  return M.at(job, world:rank(), plan_ngpus, runtime_ngpus)
end

--- What the rank of a run needs; with `alone`, to write its program without the other ranks.
---@param job table
---@param rank integer
---@param plan_ngpus integer
---@param runtime_ngpus integer
---@param alone? boolean
---@return nnscaler.Sharing
function M.at(job, rank, plan_ngpus, runtime_ngpus, alone)
  local size = runtime_ngpus
  local self = setmetatable({ job = job, rank = rank, size = size, alone = alone,
    plan_ngpus = plan_ngpus, runtime_ngpus = runtime_ngpus }, Sharing)
  -- Ranks with the same place in every scale unit.
  self.across = {}
  for first = 0, size - 1, plan_ngpus do
    self.across[#self.across + 1] = first + self.rank % plan_ngpus
  end
  self.everybody = {}
  for r = 0, size - 1 do self.everybody[r + 1] = r end
  self.units = size / plan_ngpus
  self.unit = math.floor(self.rank / plan_ngpus)
  return self
end

--- Makes the plan of the first training graph; all ranks must make the same.
---@param graph userdata nnscaler.Graph
---@return userdata plan
function Sharing:plan_for(graph)
  if self.plan then return self.plan end
  self.plan = policies.run(graph, self.job.pas_policy or 'dp', {
    plan_ngpus = self.plan_ngpus, runtime_ngpus = self.runtime_ngpus,
    pas_config = self.job.pas_config or {}, micro_batches = self.job.micro_batches or 1,
  })
  local mine = graph:hash() .. ' ' .. self.plan:hash()
  local hashes = self.alone and { mine } or groups.group(self.everybody):exchange(mine)
  for r, hash in ipairs(hashes) do
    if hash ~= hashes[1] then
      fail('communication', 'runtime.plan', ('rank %d made another graph or plan than rank 0')
        :format(r - 1), 'all ranks must run the same recipe, code and versions')
    end
  end
  self:take_place(self.plan:info())
  return self.plan
end

-- This rank's stage of the plan, and whether it is the one of its unit that tells the loss.
function Sharing:take_place(info)
  local device = self.rank % self.plan_ngpus
  local mine = {}
  for s, devices in ipairs(info.stages) do
    for _, d in ipairs(devices) do
      if d == device then mine[#mine + 1] = s - 1 end
    end
  end
  if #mine ~= 1 then
    fail('plan', 'runtime.stages', ('device %d has %d stages; several stages a device are not '
      .. 'lowered yet'):format(device, #mine), 'use a schedule with one stage a device')
  end
  self.stage = mine[1]
  -- Scale units wait for each other in every micro-batch.
  self.lockstep = info.sharded and self.units > 1
  self.reports = device == info.stages[#info.stages][1]
  if #info.stages > 1 then self.staged = stages.new(info, self.stage) end
end

---@class nnscaler.Reducer what sums the gradient of one parameter
---@field name string of the parameter
---@field ranks integer[]

---@alias nnscaler.ReducerHook fun(reducer: nnscaler.Reducer, gradient: nnscaler.Tensor)

--- Sums a gradient in place over ranks, between hooks.
---@param reducer nnscaler.Reducer
---@param gradient nnscaler.Tensor
---@param hooks? { before: nnscaler.ReducerHook[], after: nnscaler.ReducerHook[] }
function M.sum(reducer, gradient, hooks)
  for _, hook in ipairs(hooks and hooks.before or {}) do hook(reducer, gradient) end
  groups.group(reducer.ranks):all_reduce(gradient)
  for _, hook in ipairs(hooks and hooks.after or {}) do hook(reducer, gradient) end
end

--- Sums the gradients of parameters whose addends lie on several ranks.
---@param shares { name: string, reduce: integer[]|nil, gradient: boolean }[]
---@param gradient fun(share: table): nnscaler.Tensor
---@param hooks? { before: nnscaler.ReducerHook[], after: nnscaler.ReducerHook[] }
function Sharing:reduce(shares, gradient, hooks)
  for _, share in ipairs(shares) do
    if share.reduce and share.gradient then
      M.sum({ name = share.name, ranks = share.reduce }, gradient(share), hooks)
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

--- How many micro-batches every scale unit runs: as many as the one that has most of them, where
--- units wait for each other.
---@param own integer micro-batches of this unit
---@return integer
function Sharing:rounds(own)
  if not self.lockstep then return own end
  return self:over_all({ own }, 'max')[1]
end

--- Waits for all ranks.
function Sharing:barrier() groups.group(self.everybody):barrier() end

--- How many ranks hold this part of a parameter.
---@param name string
---@return integer
function Sharing:holders(name) return self.parts[name].holders end

--- The whole of a weight, or of a tensor that lies as the weight does. A collective of all ranks.
---@param name string
---@param data nnscaler.Tensor|nil this rank's part; nil when it has none
---@return nnscaler.Tensor
function Sharing:full(name, data)
  if not self:is_cut(name) then return data end
  local leaf, group = self.parts[name], groups.group(self.everybody)
  local mine = leaf and base.json_encode {
    start = leaf.start or {}, shape = leaf.shape, whole = leaf.whole or leaf.shape,
    dtype = data.dtype,
  } or ''
  local whole
  local seen = {}
  for r, text in ipairs(group:exchange(mine)) do
    if text ~= '' and not seen[text] then
      seen[text] = true
      local place = base.json_decode(text)
      whole = whole or tensor.empty(place.whole, { dtype = place.dtype })
      local target = whole
      for d, start in ipairs(place.start) do
        target = target:narrow(d - 1, start, place.shape[d])
      end
      local part = r - 1 == self.rank and data:detach():contiguous() or target:contiguous()
      group:broadcast(part, r - 1)
      target:copy_(part)
    end
  end
  return whole
end

-- Whether any rank holds less than the whole of a weight, or nothing of it; agreed by all.
function Sharing:is_cut(name)
  self.cut = self.cut or {}
  if self.cut[name] == nil then
    local leaf = self.parts[name]
    self.cut[name] = self:over_all({ (not leaf or leaf.start) and 1 or 0 }, 'max')[1] == 1
  end
  return self.cut[name]
end

--- This rank's part of a whole tensor.
---@param name string
---@param whole nnscaler.Tensor
---@return nnscaler.Tensor
function Sharing:part(name, whole)
  local leaf = self.parts[name]
  if not leaf.start then return whole end
  for d, start in ipairs(leaf.start) do whole = whole:narrow(d - 1, start, leaf.shape[d]) end
  return whole:contiguous()
end

--- Sums numbers over the scale units; in a unit those of one rank count that makes the loss.
---@param numbers number[]
---@return number[]
function Sharing:collect(numbers)
  local mine = {}
  for i, x in ipairs(numbers) do mine[i] = self.reports and x or 0 end
  return self:over_all(mine)
end

return M
