--- Measures what a plan for this machine (`hardware = 'measured'`) needs and its profile does not
--- say: the machine and its links where there is no profile of them, and the calls of the job.
--- Policies that search have no plan before they know what calls take, so theirs are those of dp.
local explain = require 'nnscaler.explain'
local log = require('nnscaler.log').logger 'nnscaler.profile'
local log_level = require 'nnscaler.log'
local plan = require 'nnscaler.commands.plan'
local process = require 'nnscaler._C.process'
local profile = require 'nnscaler.commands.profile'
local run = require 'nnscaler.commands.run'
local solve = require 'nnscaler._C.solve'

local M = {}

local kSeconds = 20 -- of a job's steps
local kEnough = 0.9 -- of the seconds of its calls, that are measured

-- Why the profile does not do for so many ranks of a host, or nil.
local function lack(job, world, count)
  local ok, found = pcall(solve.hardware, 'measured')
  if not ok then return type(found) == 'table' and found.message or tostring(found) end
  if found.devices_per_host < count then
    return ('it was measured with %d rank(s)'):format(found.devices_per_host)
  end
  if (job.pas_config or {}).re_profile then return 'pas_config.re_profile' end
  profile.as_measured(job)
  local line, _, e = plan.make(job, world)
  line.options.hardware = 'measured'
  e = explain.of(line, e.graph)
  local cost = e.account
  local all = cost.measured + cost.interpolated + cost.modelled
  if cost.measured >= kEnough * all then return nil end
  return ('of the seconds of the calls of a step %.0f %% are measured'):format(
    100 * cost.measured / all)
end

--- Makes the profile say what a plan of the job needs; says what it could not measure. Of a run
--- that a launcher has started, nothing can be measured before its ranks are there.
---@param opts { job: string, changes: string[], hardware?: string }
---@param job nnscaler.Job that they are
---@param world integer
---@return boolean measured whether there is a profile of this machine
function M.fill(opts, job, world)
  local changes = { unpack(opts.changes) }
  if opts.hardware == 'measured' then changes[#changes + 1] = 'pas_config.hardware=measured' end
  local function load()
    return run.load { job = opts.job, changes = changes, log_level = 'error' }
  end
  local count = math.min(world, process.processors())
  local why = lack(load(), world, count)
  log_level.set_level(job.log_level)
  if not why then return true end
  log.info('Measuring this machine and calls of the job on %d rank(s), at most %d s: %s', count,
    kSeconds, why)
  local code = profile.measure({ job = opts.job, changes = changes, seconds = kSeconds }, count)
  log_level.set_level(job.log_level)
  if code ~= 0 then
    log.warning('What this machine takes could not be measured (%s): figures are modelled', why)
  end
  return (pcall(solve.hardware, 'measured'))
end

return M
