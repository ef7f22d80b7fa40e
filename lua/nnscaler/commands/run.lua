--- `nnscaler run`: trains a job.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local job = require 'nnscaler.job'
local launch = require 'nnscaler._C.launch'
local log = require 'nnscaler.log'
local params = require 'nnscaler.params'
local ranks = require 'nnscaler.ranks'

local M = {}

---@class nnscaler.run.Opts
---@field job string path
---@field changes string[]
---@field metrics? string
---@field log_level? string
---@field print_config? boolean
---@field max_restarts? integer how often ranks that were lost are started again
---@field ranks? integer how many this process starts
---@field record? string folder for what the first steps compute
---@field record_steps? integer

--- Loads the job that the command line names, with its flags as changes.
---@param opts nnscaler.run.Opts
---@return nnscaler.Job
function M.load(opts)
  local changes = {}
  for _, change in ipairs(opts.changes) do changes[#changes + 1] = change end
  if opts.metrics then changes[#changes + 1] = 'metrics=' .. opts.metrics end
  if opts.log_level then changes[#changes + 1] = 'log_level=' .. opts.log_level end
  local loaded = job.load(opts.job, changes)
  log.set_level(loaded.log_level)
  return loaded
end

-- How many ranks this process starts: none when a launcher has started it.
local function ranks_to_start(opts)
  local found = launch.read()
  if found.launcher == 'none' then return opts.ranks or 1 end
  if opts.ranks and opts.ranks ~= found.size then
    fail('usage', 'cli.run', ('-n is %d, but %s started %d ranks'):format(opts.ranks,
      found.launcher, found.size), 'leave out -n: the launcher says how many')
  end
  return 1
end

-- Checkpoints of a folder. They are read by LibTorch, which a job that is refused need not open.
local function saved_in(save_dir) return require('nnscaler.checkpoint').list(save_dir) end

-- The newest whole checkpoint that is not among those of before.
local function written_since(save_dir, before)
  local newest, known = nil, {}
  for _, item in ipairs(before) do known[item.name] = item.id end
  for _, item in ipairs(saved_in(save_dir)) do
    if item.id ~= known[item.name] then newest = item.path end
  end
  return newest
end

--- A command for one of several ranks: its job, changes, and of these options those that are given.
---@param verb string
---@param opts { job: string, changes: string[] }
---@param names string[]
---@param change? string one more
---@return string[] arguments
function M.command(verb, opts, names, change)
  local arguments = { verb, opts.job }
  for _, one in ipairs(opts.changes) do arguments[#arguments + 1] = one end
  arguments[#arguments + 1] = change
  for _, name in ipairs(names) do
    if opts[name] then
      arguments[#arguments + 1] = '--' .. name:gsub('_', '-')
      arguments[#arguments + 1] = tostring(opts[name])
    end
  end
  return arguments
end

-- Exit codes after which no other start would help, or none is wanted: a wrong job, and signals to
-- the run as a whole.
local kFinal = { [0] = true, [2] = true, [129] = true, [130] = true, [143] = true }

-- Starts the ranks as processes: each is this command without -n. Where a rank is lost or fails,
-- they start again, as often as --max-restarts says, from the newest checkpoint of this run.
local function supervise(opts, loaded, count)
  local save_dir = loaded.checkpoint.save_dir
  local before, from = (opts.max_restarts or 0) > 0 and saved_in(save_dir) or {}, nil
  for restart = 0, opts.max_restarts or 0 do
    if restart > 0 then
      from = written_since(save_dir, before) or from
      log.logger('nnscaler.run').warning('Restart %d of %d, from %s.', restart, opts.max_restarts,
        from or 'the beginning')
    end
    local code = launch.supervise { ranks = count, beat_s = loaded.comm.heartbeat_s,
      arguments = M.command('run', opts, { 'metrics', 'log_level', 'record', 'record_steps' },
        from and 'checkpoint.resume_from=' .. from), program = base.executable,
      -- Also where gloo stands in for an mpi back end that is not there.
      meets_by_tcp = loaded.comm.backend ~= 'mpi' }
    if kFinal[code] or restart == (opts.max_restarts or 0) then return code end
  end
end

--- Trains as one rank.
---@param loaded nnscaler.Job
---@param opts nnscaler.run.Opts
function M.train(loaded, opts)
  if opts.record then
    local record = require 'nnscaler.verify.record'
    record.attach(loaded, { folder = opts.record, steps = opts.record_steps or 3 })
  end
  require('nnscaler.trainer').new(loaded):run()
end

-- Refuses what does not go with --record.
local function check_record(opts, loaded)
  if opts.record_steps and not opts.record then
    fail('usage', 'cli.run', '--record-steps says how many steps --record keeps, which is missing')
  end
  if not opts.record then return end
  if opts.max_restarts then
    fail('usage', 'cli.run', '--record does not go with --max-restarts: what was lost would be '
      .. 'recorded twice', 'leave out one of them')
  end
  require('nnscaler.verify.record').refuse(loaded, 'cli.run')
end

--- Has this machine measured where the job's plan is for it. What could not be is modelled: the
--- plan is then for the machine that 'cpu' describes.
---@param opts nnscaler.run.Opts
---@param loaded nnscaler.Job
---@param count integer
function M.fill(opts, loaded, count)
  if (loaded.pas_config or {}).hardware ~= 'measured' then return end
  if not require('nnscaler.commands.missing').fill(opts, loaded, count) then
    opts.changes[#opts.changes + 1] = 'pas_config.hardware=cpu'
    loaded.pas_config.hardware = 'cpu'
  end
end

--- Trains; returns the exit code.
---@param opts nnscaler.run.Opts
---@return integer
function M.run(opts)
  launch.report_to_supervisor()
  local count = ranks_to_start(opts)
  if count > 1 then ranks.expect(count) end
  local loaded = M.load(opts)
  if opts.print_config then
    if ranks.rank() == 0 then print((loaded:text():gsub('\n$', ''))) end
    return 0
  end
  ranks.expect(nil)
  if loaded.run_mode == 'compile' then return require('nnscaler.commands.compile').run(opts) end
  if opts.max_restarts and (launch.read().launcher ~= 'none' or loaded.comm.backend == 'local') then
    fail('usage', 'cli.run', '--max-restarts is for ranks that nnscaler starts as processes',
      'torchrun has --max-restarts of its own; set checkpoint.resume_from=last with it')
  end
  check_record(opts, loaded)
  if launch.read().launcher == 'none' then M.fill(opts, loaded, count) end
  if count == 1 and not opts.max_restarts then
    M.train(loaded, opts)
    ranks.finish()
    return 0
  end
  if loaded.comm.backend ~= 'local' then return supervise(opts, loaded, count) end
  local comm = require 'nnscaler._C.comm'
  comm.run_local(count, 'nnscaler.commands.run_rank', base.json_encode(opts))
  return 0
end

--- Prints the parameters of a recipe.
---@param opts nnscaler.run.Opts
---@return integer
function M.help(opts)
  if not opts.job:find('%.lua$') then return 0 end
  local ok, err, context = job.evaluate(opts.job, opts.changes)
  if not ok and #context.declared == 0 then error(err, 0) end
  if #context.declared == 0 then
    print(('\n%s declares no parameters of its own.'):format(opts.job))
  else
    print(('\nparameters of %s:\n%s'):format(opts.job, params.describe(context)))
  end
  return 0
end

return M
