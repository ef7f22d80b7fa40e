--- Where each rank computes: host, device, processors, threads. All ranks make it together.
local base = require 'nnscaler._C.base'
local process = require 'nnscaler._C.process'
local ranks = require 'nnscaler.ranks'

local M = {}

---@class nnscaler.trainer.DeviceMap
---@field threads integer of this rank's operators
local Map = {}
Map.__index = Map

local kLines = 64 -- ranks that the log lists

--- Makes the map; a collective of all ranks.
---@param job nnscaler.Job
---@return nnscaler.trainer.DeviceMap
function M.new(job)
  local name, id = process.host()
  local mine = { name = name, id = id, processors = process.processor_list(),
    device = job.device == 'cuda' and 'cuda:' .. ranks.local_rank() or job.device or 'cpu' }
  local all = {}
  for i, text in ipairs(ranks.exchange(base.json_encode(mine))) do
    all[i] = base.json_decode(text)
  end
  -- Ranks that may use the same processors share them.
  local sharing = 0
  for _, other in ipairs(all) do
    if other.id == mine.id and other.processors == mine.processors then sharing = sharing + 1 end
  end
  local self = setmetatable({ all = all, count = process.processors() / sharing }, Map)
  self.threads = job.threads or math.max(1, math.floor(self.count))
  return self
end

--- Logs the map, and warns of a rank with fewer processors than threads.
---@param log nnscaler.Logger
function Map:describe(log)
  for i, rank in ipairs(self.all) do
    if i > kLines then
      log.info('… and %d more ranks', #self.all - kLines)
      break
    end
    log.info('Rank %d: host %s, device %s, processors %s', i - 1, rank.name, rank.device,
      rank.processors)
  end
  if self.threads > self.count then
    log.warning('%d threads compute on %.3g processor(s): expect them to wait for each other; '
      .. 'threads=1 and mpirun --bind-to none may help', self.threads, self.count)
  end
end

return M
