--- `nnscaler run`: trains a job.

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
---@field ranks? integer how many this process starts

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

-- Starts the ranks as processes: each is this command without -n.
local function supervise(opts, loaded, count)
  local comm, backend = loaded.comm, loaded.comm.backend
  local arguments = { 'run', opts.job }
  for _, change in ipairs(opts.changes) do arguments[#arguments + 1] = change end
  for _, name in ipairs { 'metrics', 'log_level' } do
    if opts[name] then
      arguments[#arguments + 1] = '--' .. name:gsub('_', '-')
      arguments[#arguments + 1] = opts[name]
    end
  end
  return launch.supervise { ranks = count, beat_s = comm.heartbeat_s, arguments = arguments,
    program = require('nnscaler._C.base').executable,
    -- Also where gloo stands in for an mpi back end that is not there.
    meets_by_tcp = backend ~= 'mpi' }
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
  if count == 1 then
    require('nnscaler.trainer').new(loaded):run()
    ranks.finish()
    return 0
  end
  if loaded.comm.backend ~= 'local' then return supervise(opts, loaded, count) end
  local comm, base = require 'nnscaler._C.comm', require 'nnscaler._C.base'
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
