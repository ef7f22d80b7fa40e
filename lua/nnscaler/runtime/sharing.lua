--- The several ranks of a run, as the program engine needs them: the plan of the job's policy, this
--- rank's parts of weights, sums of gradients and losses over ranks.
local comm = require 'nnscaler._C.comm'
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.comm'
local policies = require 'nnscaler.policies'
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
  local plan_ngpus = config.plan_ngpus or (whole and 1 or size)
  local runtime_ngpus = config.runtime_ngpus or size
  if size == 1 and plan_ngpus == 1 and runtime_ngpus == 1 then return nil end
  if runtime_ngpus ~= size then
    fail('usage', 'runtime.ranks', ('compute_config.runtime_ngpus is %d; the run has %d ranks')
      :format(runtime_ngpus, size), 'start as many ranks as runtime_ngpus: nnscaler run -n '
      .. runtime_ngpus)
  end
  local self = setmetatable({ job = job, rank = world:rank(), size = size,
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
  local hashes = groups.group(self.everybody):exchange(graph:hash() .. ' ' .. self.plan:hash())
  for r, hash in ipairs(hashes) do
    if hash ~= hashes[1] then
      fail('communication', 'runtime.plan', ('rank %d made another graph or plan than rank 0')
        :format(r - 1), 'all ranks must run the same recipe, code and versions')
    end
  end
  return self.plan
end

--- Sums the gradients of parameters whose addends lie on several ranks.
---@param shares { name: string, reduce: integer[]|nil, gradient: boolean }[]
---@param gradient fun(share: table): nnscaler.Tensor
function Sharing:reduce(shares, gradient)
  for _, share in ipairs(shares) do
    if share.reduce and share.gradient then
      groups.group(share.reduce):all_reduce(gradient(share))
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

--- The whole of a weight, or of a tensor that lies as the weight does. A collective.
---@param name string
---@param data nnscaler.Tensor this rank's part
---@return nnscaler.Tensor
function Sharing:full(name, data)
  local leaf = self.parts[name]
  if not self:is_cut(name) then return data end
  local group = groups.group(self.everybody)
  local mine = table.concat(leaf.start or {}, ',') .. ';' .. table.concat(leaf.shape, ',')
  local whole = tensor.empty(leaf.whole or leaf.shape, { dtype = data.dtype, device = data.device })
  local seen = {}
  for r, place in ipairs(group:exchange(mine)) do
    if not seen[place] then
      seen[place] = true
      local target = whole
      local starts, sizes = place:match '^(.*);(.*)$'
      local d, size = 0, sizes:gmatch '%d+'
      for start in starts:gmatch '%d+' do
        target = target:narrow(d, tonumber(start), tonumber(size()))
        d = d + 1
      end
      local part = r - 1 == self.rank and data:detach():contiguous() or target:contiguous()
      group:broadcast(part, r - 1)
      target:copy_(part)
    end
  end
  return whole
end

-- Whether any rank holds less than the whole of a weight; agreed by all.
function Sharing:is_cut(name)
  self.cut = self.cut or {}
  if self.cut[name] == nil then
    self.cut[name] = self:over_all({ self.parts[name].start and 1 or 0 }, 'max')[1] == 1
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

--- Sums numbers over the scale units.
---@param numbers number[]
---@return number[]
function Sharing:sum(numbers)
  if self.units == 1 then return numbers end
  local t = tensor.tensor(numbers, { dtype = 'float64' })
  return groups.group(self.across):all_reduce(t):tolist()
end

return M
