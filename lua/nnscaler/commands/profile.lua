--- `nnscaler profile`: measures this machine, and the calls of a job, for the planner.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local launch = require 'nnscaler._C.launch'
local log = require 'nnscaler.log'
local ranks = require 'nnscaler.ranks'
local run = require 'nnscaler.commands.run'
local solve = require 'nnscaler._C.solve'

local M = {}

local kSeconds = 20 -- of a job's steps

---@class nnscaler.profile.Opts
---@field job? string path
---@field changes string[]
---@field ranks? integer
---@field seconds? integer
---@field out? string
---@field log_level? string

--- A job whose policy searches on measured hardware is measured under dp: its own plan is not known
--- before.
---@param job nnscaler.Job
function M.as_measured(job)
  if (job.pas_config or {}).hardware ~= 'measured' then return end
  job.pas_policy, job.pas_config = 'dp', {}
  if job.compute_config then job.compute_config.plan_ngpus = nil end
end

local function load(opts)
  local changes = { unpack(opts.changes) }
  for _, change in ipairs { 'checkpoint.no_save=true', 'enable_progress_bar=false' } do
    changes[#changes + 1] = change
  end
  local job = run.load { job = opts.job, changes = changes,
    log_level = opts.log_level or 'warning' }
  M.as_measured(job)
  if job.eager then
    fail('usage', 'profile.eager', 'eager=true has no program whose calls could be measured',
      'leave it out')
  end
  return job
end

--- Measures on so many processes of their own; returns the exit code.
---@param opts nnscaler.profile.Opts
---@param count integer
---@return integer
function M.measure(opts, count)
  if count > 1 then ranks.expect(count) end
  if opts.job then load(opts) end -- what is wrong with it is said once
  ranks.expect(nil)
  return launch.supervise { ranks = count, beat_s = 1, arguments = run.command('profile', opts,
    { 'seconds', 'out', 'log_level' }),
    program = base.executable, meets_by_tcp = true }
end

--- Measures; returns the exit code.
---@param opts nnscaler.profile.Opts
---@return integer
function M.run(opts)
  launch.report_to_supervisor()
  log.set_level(opts.log_level or 'warning')
  local path = opts.out or solve.profile_path()
  if path == '' then
    fail('usage', 'profile.out', 'neither HOME nor XDG_CACHE_HOME is set', 'give --out FILE.json')
  end
  if not path:find '%.json$' then
    fail('usage', 'profile.out', ("--out is '%s'; expected a name that ends in .json"):format(path))
  end
  local count = launch.read().launcher == 'none' and opts.ranks or 1
  if count > 1 then return M.measure(opts, count) end
  local job = opts.job and load(opts)
  local report = require('nnscaler.profiler').run(job, path, opts.seconds or kSeconds)
  if ranks.rank() == 0 then print(report) end
  ranks.finish()
  return 0
end

return M
