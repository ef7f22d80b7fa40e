--- States in memory of the host (compute_config.zero_offload): whether that has room for them.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local log = require 'nnscaler.log'
local parts = require 'nnscaler.trainer.parts'
local precision = require 'nnscaler.precision'
local process = require 'nnscaler._C.process'
local ranks = require 'nnscaler.ranks'
local slots = require 'nnscaler.optim.slots'
local units = require 'nnscaler.units'

local M = {}

--- Refuses it where a job cannot have it.
---@param job nnscaler.Job
function M.check(job)
  if job.compute_config.zero_offload == 'none' then return end
  local what = job.eager and 'eager=true' or parts.of(job) and 'model.parallel_modules'
  if what then
    fail('usage', 'trainer.offload', ('compute_config.zero_offload beside %s; expected a program '
      .. 'of the whole model'):format(what), 'leave out one of them')
  end
end

--- Bytes of the gradients of parameters, as they rest on this rank.
---@param leaves { shape: integer[], dtype: string, gradient?: integer[], addends?: integer }[]
---@return integer
function M.gradient_bytes(leaves)
  local total = 0
  for _, leaf in ipairs(leaves) do
    local bytes = slots.width[precision.gradient_dtype(leaf.dtype)]
    for _, size in ipairs(leaf.gradient or leaf.shape) do bytes = bytes * size end
    if leaf.addends ~= 0 then total = total + bytes end
  end
  return total
end

--- Refuses what hosts have no room for, on all ranks alike.
---@param told { host: string, name: string, bytes: integer, free: integer }[] by rank
function M.check_room(told)
  local of = {} -- by host
  for r, one in ipairs(told) do
    local host = of[one.host] or { name = one.name, bytes = 0, free = one.free, ranks = {} }
    of[one.host] = host
    host.bytes, host.free = host.bytes + one.bytes, math.min(host.free, one.free)
    host.ranks[#host.ranks + 1] = tostring(r - 1)
    one.of = host
  end
  for _, one in ipairs(told) do
    local host = one.of
    if host.bytes > host.free then
      fail('state', 'trainer.offload', ("compute_config.zero_offload puts %s of rank(s) %s on the "
        .. "host '%s', which has %s free"):format(units.bytes(host.bytes),
        table.concat(host.ranks, ', '), host.name, units.bytes(host.free)),
        'share states over more hosts (compute_config.use_zero), or leave out '
        .. 'compute_config.zero_offload')
    end
  end
end

--- Refuses states on the host, where the job asks for that, if hosts have no room for them.
---@param t nnscaler.Trainer
function M.prepare(t)
  local on_host = t.engine.options and t.engine.options.zero.on_host
  if not on_host or not on_host.slots then return end
  local bytes = slots.bytes(t.optimizer)
  if on_host.gradients then
    local leaves = t.engine.first and t.engine.first:parameters()
    if not leaves then
      leaves = {}
      for i, slot in ipairs(t.optimizer.slots) do
        leaves[i] = { shape = slot.data.shape, dtype = slot.data.dtype }
      end
    end
    bytes = bytes + M.gradient_bytes(leaves)
  end
  local name, host = process.host()
  local told = {}
  for r, text in ipairs(ranks.exchange(base.json_encode { host = host, name = name, bytes = bytes,
    free = process.free_bytes() })) do
    told[r] = base.json_decode(text)
  end
  M.check_room(told)
  log.logger('nnscaler.trainer').info('%s of states rest in memory of the host.',
    units.bytes(bytes))
end

return M
