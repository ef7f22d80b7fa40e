--- Memory of a run: what it will take, by the programs of all ranks, against what there is. A run
--- that does not fit is refused before its first step; where a tensor finds no room all the same,
--- the error says what was alive.
local alive = require 'nnscaler.trainer.alive'
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local phases = require 'nnscaler.trainer.phases'
local ranks = require 'nnscaler.ranks'
local units = require 'nnscaler.units'

local M = {}

local function number_in(path)
  local file = io.open(path)
  local text = file and file:read '*a'
  if file then file:close() end
  return text and tonumber(text:match '%d+')
end

-- Bytes that the processes of this host may have: of the machine, or of the container.
local function host_memory()
  local most = math.huge
  for line in io.lines '/proc/meminfo' do
    local kb = line:match '^MemTotal:%s*(%d+) kB'
    if kb then most = tonumber(kb) * 1024 end
  end
  for _, path in ipairs { '/sys/fs/cgroup/memory.max',
    '/sys/fs/cgroup/memory/memory.limit_in_bytes' } do
    most = math.min(most, number_in(path) or math.huge)
  end
  return most
end

---@class nnscaler.trainer.Room what there is
---@field limit number bytes
---@field hosts integer[]|nil by rank, from 1: ranks of one host share the limit; nil: each has it

-- The limit that the job gives, in GB.
local function given(t) return (t.args.compute_config or {}).memory_gb end

-- What there is; nil where nobody knows. A collective.
local function room(t)
  local gb = given(t)
  if gb then return { limit = gb * 2 ^ 30 } end
  if (t.args.device or 'cpu') ~= 'cpu' then return nil end
  local hosts = {}
  for i, rank in ipairs(t.map.all) do hosts[i] = rank.id end
  local least = math.huge
  for _, text in ipairs(ranks.exchange(('%.0f'):format(host_memory()))) do
    least = math.min(least, tonumber(text))
  end
  return { limit = least, hosts = hosts }
end

--- Bytes that each rank may count on; nil where nobody knows. A collective.
---@param t nnscaler.Trainer
---@return number|nil
function M.each(t)
  local where = room(t)
  if not where then return nil end
  local count, most = {}, 1
  for _, host in ipairs(where.hosts or {}) do
    count[host] = (count[host] or 0) + 1
    most = math.max(most, count[host])
  end
  return where.limit / most
end

--- Bytes that each of so many ranks on this machine may count on.
---@param ranks_here integer
---@return number
function M.each_here(ranks_here) return host_memory() / ranks_here end

-- The most that must fit into the limit: of a rank, or of all ranks of a host; and whose that is.
local function need(memories, where)
  local sums, most, whose = {}, 0, nil
  for i, m in ipairs(memories) do
    local key = where.hosts and where.hosts[i] or i
    sums[key] = (sums[key] or 0) + m.total + (where.hosts and m.host or 0)
    if sums[key] > most then most, whose = sums[key], key end
  end
  return most, whose
end

-- Changes that save memory, the smallest first: of what rests where, of what is kept, of sizes.
local function changes(t)
  local list, args = {}, t.args
  local level = t.sharing and t.sharing.plan:info().zero or 0
  for zero = level + 1, t.units > 1 and 3 or 0 do
    list[#list + 1] = { ('compute_config.use_zero=%d'):format(zero) }
  end
  local kept = (args.pas_config or {}).recompute_modules == nil
  local block = kept and M.blocks(t.model)
  if block then list[#list + 1] = { ("pas_config.recompute_modules='%s'"):format(block) } end
  local whole = t.span.per_step * args.micro_batch_size
  local size = args.micro_batch_size
  while size % 2 == 0 do
    size = size / 2
    list[#list + 1] = { ('micro_batch_size=%d'):format(size),
      ('global_batch_size=%d'):format(whole) }
  end
  local last, all = #list, {}
  local first = { list[t.units > 1 and 3 - level or 0] or false, block and { ("pas_config."
    .. "recompute_modules='%s'"):format(block) } or false, list[last] or false }
  for _, part in ipairs(first) do
    for _, change in ipairs(part or {}) do all[#all + 1] = change end
  end
  if #all > 0 then list[#list + 1] = all end
  return list
end

--- A pattern of the paths of a model's repeated modules: 'transformer.h.*'; nil where it has none.
---@param model nnscaler.nn.Module
---@return string|nil
function M.blocks(model)
  local counts, best = {}, nil
  for _, entry in ipairs(model:named_modules()) do
    local list = entry.name:match '^(.*)%.%d+$'
    if list then
      counts[list] = (counts[list] or 0) + 1
      if not best or counts[list] > counts[best] then best = list end
    end
  end
  return best and best .. '.*'
end

-- The first change with which the run fits, in words; what else to do where none is enough.
local function advice(t, where, predict)
  local said
  for _, change in ipairs(changes(t)) do
    local ok, memories = pcall(predict, t, change)
    if ok and need(memories, where) <= where.limit then
      local most = need(memories, where)
      said = ('%s takes %s'):format(table.concat(change, ' '), units.bytes(most))
      break
    end
  end
  return said or 'neither shards, nor recomputation, nor smaller micro-batches are enough: give a '
    .. 'plan more devices (compute_config.plan_ngpus), or make the model smaller'
end

-- How many ranks share the memory of this process.
local function threads()
  return ranks.place().launcher == 'none' and ranks.local_world_size() or 1
end

--- Says what the run will take and refuses it where that does not fit. A collective; before the
--- first step, when engine and optimizer are there.
---@param t nnscaler.Trainer
---@param predict fun(t: nnscaler.Trainer, changes: string[]): nnscaler.trainer.Memory[] of all
---  ranks under changes of the job
function M.check(t, predict)
  if given(t) then door.limit_memory(given(t) * 2 ^ 30 * threads()) end
  local program = t.engine.first
  if not program then return end -- eager, or parallel modules of the user
  t.memory = phases.of(t.args.optimizer, program, t.rank, phases.settings(t.args, t.model,
    t.engine.options, t.span.per_step / t.units, t.sample_bytes))
  local memories, top = {}, 1
  for i, text in ipairs(ranks.exchange(base.json_encode(t.memory))) do
    memories[i] = base.json_decode(text)
    if memories[i].total > memories[top].total then top = i end
  end
  local where = room(t)
  local m = memories[top]
  local of = #memories > 1 and (' of rank %d, which takes most'):format(top - 1) or ''
  local there = where and (', of %s %s'):format(units.bytes(where.limit),
    where.hosts and 'of the machine' or 'allowed') or ''
  t.log.info('Memory%s: at most %s (%s)%s', of, units.bytes(m.total), phases.kinds(m), there)
  if not where then return end
  local most, whose = need(memories, where)
  if most <= where.limit then return end
  local hint = t.sharing and t.sharing:of_rank_zero(function() return advice(t, where, predict) end)
    or advice(t, where, predict)
  fail('usage', 'trainer.memory', ('%s will take %s (%s); expected at most %s%s'):format(
    where.hosts and 'the run' or ('rank %d'):format(whose - 1), units.bytes(most), phases.kinds(m),
    units.bytes(where.limit), where.hosts and ', what the machine has'
      or ', compute_config.memory_gb'), hint)
end

--- An error that says that there is no memory, with what was predicted and what was alive; any
--- other as it is. To be called in the handler of the error, before the stack is left.
---@param t nnscaler.Trainer
---@param err any
---@return any
function M.explain(t, err)
  local message = type(err) == 'table' and err.message or tostring(err)
  if not (message:find('no room for a tensor', 1, true) or message:find('out of memory', 1, true))
  then
    return err
  end
  local lines = { '[memory.full] ' .. message:gsub('^%[[%w_.]+%] ', '') }
  if t.memory then
    lines[#lines + 1] = ('predicted for rank %d: at most %s (%s)'):format(t.rank,
      units.bytes(t.memory.total), phases.kinds(t.memory))
  end
  for _, line in ipairs(alive.lines(t)) do lines[#lines + 1] = line end
  local out = setmetatable({ kind = 'state', message = table.concat(lines, '\n  '),
    hint = 'a smaller micro_batch_size, compute_config.use_zero and pas_config.recompute_modules '
      .. 'take less; docs/memory.md', traceback = type(err) == 'table' and err.traceback or nil },
    debug.getregistry()['nnscaler.Error'])
  return out
end

return M
