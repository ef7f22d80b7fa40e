--- `nnscaler diff`: records two runs, the second with the weights of the first before each step,
--- and names the first operator in which they differ.
local base = require 'nnscaler._C.base'
local difference = require 'nnscaler.verify.difference'
local fail = require 'nnscaler.fail'
local policies = require 'nnscaler.policies'
local ranks = require 'nnscaler.ranks'
local record = require 'nnscaler.verify.record'
local recording = require 'nnscaler.verify.recording'
local report = require 'nnscaler.commands.diff_report'
local run = require 'nnscaler.commands.run'

local M = {}

---@class nnscaler.diff.Opts
---@field job_a string job or recording
---@field job_b? string the same job if not given
---@field changes string[] of both
---@field a? string[] of A alone
---@field b? string[] of B alone
---@field steps? integer
---@field limit? number
---@field record? string
---@field log_level? string

---@class nnscaler.diff.Side
---@field letter 'A'|'B'
---@field path string
---@field job nnscaler.Job|nil nil: a recording
---@field opts table what diff_rank takes

local function is_job(text) return text:match '%.lua$' or text:match '%.ya?ml$' end

local function sets(changes, key)
  for _, change in ipairs(changes) do
    if change:sub(1, #key + 1) == key .. '=' then return true end
  end
  return false
end

-- As many ranks as a job asks for; one where it does not say.
local function count_of(job)
  local config = job.compute_config or {}
  return config.runtime_ngpus or config.plan_ngpus or policies.devices(job.pas_policy) or 1
end

-- What is run, or was recorded, as one side.
local function side(letter, path, opts, own)
  local out = { letter = letter, path = path, opts = { job = path, changes = {},
    log_level = opts.log_level or 'warning', steps = opts.steps or 3 } }
  local changes = out.opts.changes
  for _, list in ipairs { opts.changes, own or {} } do
    for _, change in ipairs(list) do changes[#changes + 1] = change end
  end
  if is_job(path) then
    out.job = run.load(out.opts)
    record.refuse(out.job, 'diff.job')
    out.opts.files = sets(changes, 'gen_savedir')
  elseif not recording.is_one(path) then
    fail('usage', 'cli.diff', ("%s is '%s', neither a job (.lua, .yaml) nor a recording"):format(
      letter, path), 'nnscaler run JOB --record FOLDER records a run')
  elseif own and #own > 0 then
    fail('usage', 'cli.diff', ("%s is the recording '%s', which --%s cannot change"):format(letter,
      path, letter:lower()), 'record the run again with the changes')
  end
  return out
end

-- float64, unless the sides have precisions of their own, or one was recorded in another.
local function set_precision(a, b, recorded)
  if recorded then
    if not sets(b.opts.changes, 'precision') and recorded.info.precision then
      local words = recorded.info.precision
      if type(words) ~= 'string' then words = base.json_encode(words) end
      table.insert(b.opts.changes, 'precision=' .. words)
    end
    return
  end
  local of_a, of_b = a.job.precision, b.job.precision
  if base.json_encode { of_a } ~= base.json_encode { of_b } then return end
  for _, s in ipairs { a, b } do
    if not sets(s.opts.changes, 'precision') then table.insert(s.opts.changes, 'precision=fp64') end
  end
end

-- Runs a side on rank threads; it is recorded in the folder.
local function take(s, folder, given)
  s.opts.folder, s.opts.given = folder, given
  local comm = require 'nnscaler._C.comm'
  comm.run_local(count_of(run.load(s.opts)), 'nnscaler.commands.diff_rank',
    base.json_encode(s.opts))
  return recording.open(folder)
end

local function compare(a, b, opts, folder)
  local of_a = a.job and take(a, folder .. '/a') or recording.open(a.path)
  b.opts.steps = math.min(b.opts.steps, of_a.steps)
  if not a.job and b.job then set_precision(a, b, of_a) end
  local of_b = b.job and take(b, folder .. '/b', of_a.folder) or recording.open(b.path)
  report.sides(of_a, of_b)
  local compared = difference.of(of_a, of_b, opts.limit)
  report.result(compared)
  return (compared.finding or #compared.first > 0) and 1 or 0
end

local function remove(folder)
  for _, name in ipairs { '/a', '/b' } do
    local list = base.file_exists(folder .. name) and base.list_folder(folder .. name) or {}
    for _, file in ipairs(list) do os.remove(folder .. name .. '/' .. file) end
    os.remove(folder .. name)
  end
  os.remove(folder)
end

--- Prints the report; returns the exit code: 1 where something differs.
---@param opts nnscaler.diff.Opts
---@return integer
function M.run(opts)
  opts.changes = opts.changes or {}
  local path = opts.job_b
  if path and not is_job(path) and path:find('[=!]') then -- a change of both: B is A
    table.insert(opts.changes, 1, path)
    path = nil
  end
  local a = side('A', opts.job_a, opts, opts.a)
  local b = side('B', path or opts.job_a, opts, opts.b)
  ranks.expect(nil)
  if a.job and b.job then set_precision(a, b) end
  local folder = opts.record or os.tmpname()
  if not opts.record then os.remove(folder) end
  base.make_folder(folder)
  local ok, result = pcall(compare, a, b, opts, folder)
  if not opts.record then remove(folder) end
  if not ok and type(result) == 'string' and not (a.job and b.job) then
    fail('state', 'diff.recording', 'a recording holds what no run writes: ' .. result,
      'record the run again: nnscaler run JOB --record FOLDER')
  end
  if not ok then error(result, 0) end
  return result
end

return M
