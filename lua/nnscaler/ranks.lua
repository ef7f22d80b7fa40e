--- The ranks of a run as scripts see them, and how a process becomes one: by what its launcher put
--- into the environment. Ranks are processes, or with `comm.backend = 'local'` threads of one.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local launch = require 'nnscaler._C.launch'

local M = {}

local expected -- { size } of ranks that this process is about to start

-- The communicator, once this rank has joined one.
local function current()
  return package.loaded['nnscaler._C.comm'] and require('nnscaler._C.comm').current()
end

---@return { launcher: string, rank: integer, size: integer, local_rank: integer,
---  local_size: integer }
local function place()
  local joined = current()
  if joined and joined:backend() == 'local' then
    local rank, size = joined:rank(), joined:size()
    return { launcher = 'none', rank = rank, size = size, local_rank = rank, local_size = size }
  end
  return expected or launch.read()
end

--- Says what the environment of this process says, before it has joined anything.
M.place = place

--- Makes a process that evaluates a job before it starts the ranks see what rank 0 will see.
---@param size integer|nil
function M.expect(size)
  expected = size and { launcher = 'none', rank = 0, size = size, local_rank = 0,
    local_size = size }
end

---@return integer rank from 0
function M.rank() return place().rank end

---@return integer ranks
function M.world_size() return place().size end

---@return integer rank among those of this host, from 0
function M.local_rank() return place().local_rank end

---@return integer ranks of this host
function M.local_world_size() return place().local_size end

-- The group of all ranks; for those that have joined.
local function everybody()
  local comm = require 'nnscaler.runtime.groups'
  return comm.group(comm.all_ranks())
end

-- From here on ranks hear of each other's failures: from the supervisor, else from rank 0.
local function watch(found, options)
  local beat_s = options.heartbeat_s or 1
  if beat_s > 0 and not launch.is_watched() then
    local endpoint = found.rank == 0 and launch.host_watch(beat_s) or ''
    launch.watch(everybody():exchange(endpoint)[1])
  end
  launch.limit_calls(options.timeout_s or 600)
end

--- The device of one of several ranks: of a host's GPUs, the one of its local rank.
---@param device string of the job, a GPU; 'cuda:1' names one and is not touched
---@param found { launcher: string, local_rank: integer, local_size: integer } where the rank is
---@param gpus integer of this host; 0 when none can be used, which joining will tell
---@return string
function M.device(device, found, gpus)
  if found.launcher == 'none' then
    fail('usage', 'comm.devices', ('device is %s, but ranks that are threads share the memory of '
      .. 'the host'):format(device), 'start processes: leave out comm.backend=local')
  end
  if device ~= 'cuda' then return device end
  if gpus > 0 and found.local_size > gpus then
    fail('usage', 'comm.devices', ('%d ranks on this host, but it shows %d GPU(s); expected one '
      .. 'per rank'):format(found.local_size, gpus), 'start fewer ranks a host; where each rank is '
      .. 'shown a GPU of its own (CUDA_VISIBLE_DEVICES), device=cuda:0')
  end
  return 'cuda:' .. found.local_rank
end

--- Joins the ranks that a launcher started; alone or joined already it does nothing.
---@param job nnscaler.Job
function M.join(job)
  local found = place()
  local device = job.device or 'cpu'
  if found.size > 1 and device:match '^cuda' then
    local door = require 'nnscaler._C.tensor'
    device = M.device(device, found, door.cuda_count())
    if door.has_cuda() then door.set_cuda_device(tonumber(device:match '%d+')) end
  end
  if found.launcher == 'none' or current() then return end
  local options = job.comm or {}
  local limit = options.timeout_s or 600
  require('nnscaler._C.comm').connect {
    backend = options.backend, join_timeout_s = options.join_timeout_s, device = device,
    -- The watch speaks first: it says who waits for what.
    timeout_s = options.heartbeat_s ~= 0 and limit + 30 or limit,
  }
  if found.size > 1 then watch(found, options) end
end

-- What may differ between the ranks of a job.
local own = { metrics = true, threads = true, device = true, log_level = true }

local function shown(line) return line and line:match '^%s*(.*)$' or 'nothing' end

local function lines_of(text)
  local list, key = {}, ''
  for line in text:gmatch '[^\n]+' do
    key = line:match '^([%w_]+):' or key
    if not own[key] then list[#list + 1] = line end
  end
  return list
end

--- Raises when ranks were given different jobs or are of different versions; says which key.
---@param job nnscaler.Job
function M.agree(job)
  local mine = base.version .. '\n' .. table.concat(lines_of(job:text()), '\n')
  local all = M.exchange(mine)
  for r, theirs in ipairs(all) do
    if theirs ~= all[1] then
      local a, b = lines_of(all[1]), lines_of(theirs)
      local i = 1
      while a[i] == b[i] do i = i + 1 end
      fail('usage', 'comm.job', ("the ranks were given different jobs: rank 0 has '%s', rank %d "
        .. "has '%s'"):format(shown(a[i]), r - 1, shown(b[i])),
        'start all ranks with the same command line and the same files')
    end
  end
end

--- The common end: no rank has failed, and each may leave now.
function M.finish()
  local communicator = current()
  if not communicator or not launch.is_watched() then return end
  everybody():barrier()
  launch.finish()
end

--- Waits until every rank is here.
function M.barrier()
  local communicator = current()
  if communicator then
    everybody():barrier()
  elseif place().size > 1 then
    fail('usage', 'comm.barrier', 'the ranks have not joined yet: a recipe is evaluated before',
      'call it from a hook, or from the function that makes the model')
  end
end

--- What every rank says, in order of rank.
---@param mine string
---@return string[]
function M.exchange(mine)
  local communicator = current()
  return communicator and everybody():exchange(mine) or { mine }
end

return M
