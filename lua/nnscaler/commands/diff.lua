--- `nnscaler diff`: records two runs of a model, the second with the weights of the first before each
--- step, and names the first operator in which they differ.
local base = require 'nnscaler._C.base'
local difference = require 'nnscaler.verify.difference'
local fail = require 'nnscaler.fail'
local parts = require 'nnscaler.trainer.parts'
local ranks = require 'nnscaler.ranks'
local recording = require 'nnscaler.verify.recording'
local run = require 'nnscaler.commands.run'
local verify = require 'nnscaler.commands.verify'

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

local function is_job(text) return text:match '%.lua$' or text:match '%.ya?ml$' end

local function sets(changes, key)
  for _, change in ipairs(changes) do
    if change:match('^' .. key:gsub('%.', '%%.') .. '=') then return true end
  end
  return false
end

-- What runs as one side.
local function side(path, changes, own, opts)
  local all = {}
  for _, list in ipairs { changes, own } do
    for _, change in ipairs(list) do all[#all + 1] = change end
  end
  return { job = path, changes = all, log_level = opts.log_level or 'warning',
    steps = opts.steps or 3, files = sets(all, 'gen_savedir') }
end

local function remove(folder)
  for _, name in ipairs(base.list_folder(folder)) do os.remove(folder .. '/' .. name) end
  os.remove(folder)
end

-- Runs a side on rank threads into a folder.
local function record(opts, folder, given)
  opts.folder, opts.given = folder, given
  local job = run.load(opts)
  if job.eager then
    fail('usage', 'diff.eager', 'eager=true has no program whose calls could be compared',
      'leave it out: one device under a plan of its own is pas_policy=dp on one rank')
  end
  if job.checkpoint.resume_from then
    fail('usage', 'diff.resume', 'checkpoint.resume_from goes on in the middle of a run; expected '
      .. 'weights to start with', 'checkpoint.init_from takes the weights of a checkpoint')
  end
  parts.refuse(job, 'diff.parts')
  local comm = require 'nnscaler._C.comm'
  comm.run_local(verify.count_of(job), 'nnscaler.commands.diff_rank', base.json_encode(opts))
  return recording.open(folder)
end

local function box(part)
  local ranges = {}
  for d, start in ipairs(part.start) do
    ranges[d] = ('%d:%d'):format(start, start + part.shape[d])
  end
  return '[' .. table.concat(ranges, ', ') .. ']'
end

local function describe(letter, run_of)
  local info = run_of.info
  print(('%s  %s %s'):format(letter, info.job or '', table.concat(info.changes or {}, ' ')))
  print(('   policy %s, %d rank(s), %d device(s) a plan, %d scale unit(s), precision %s'):format(
    info.policy, info.ranks, info.plan_ngpus, info.units, tostring(info.precision)))
end

local words = {
  forward = 'Forward differs first', backward = 'Backward differs first',
  gradient = 'Gradients of parameters differ after they were summed and scaled',
  weight = 'Weights differ after the update',
}

-- What a form of a value is, in words.
local function said(finding)
  local form, value = finding.form, finding.value
  local what = form.gradient and 'gradient of ' or ''
  what = what .. (value.name ~= '' and value.name or ('value %d'):format(value.id))
  if form.gradient and form.reader >= 0 then return what .. ', as this operator gives it' end
  if not form.gradient and form.reader >= 0 then return what .. ', as this operator reads it' end
  return what
end

local function print_parts(finding)
  print '\nparts:'
  for _, form in ipairs(finding.forms) do
    print(('  %s %s'):format(form.side, form.layout ~= '' and form.layout or 'as it rests'))
    for _, part in ipairs(form.parts) do
      local addend = part.addends > 1
        and ('  addend %d of %d'):format(part.addend + 1, part.addends) or ''
      local line = part.line and ('  line %d of its file'):format(part.line) or ''
      local size = not part.tensor and '  the file makes no such call'
        or ('  norm %.9g'):format(part.read():to('float64'):norm():item())
      print(('    rank %d  %s%s%s%s'):format(part.rank, box(part), addend, size, line))
    end
  end
end

local function print_finding(finding)
  local micro = finding.micro and (', micro-batch %d'):format(finding.micro) or ''
  print(('\n%s: step %d%s'):format(words[finding.phase], finding.step, micro))
  local node, form = finding.node, finding.form
  if finding.name then
    print(('  parameter  %s'):format(finding.name))
  else
    print(('  operator   %s'):format(node.op))
    print(('  module     %s'):format(node.module == '' and 'the model' or node.module))
    print(('  source     %s:%d%s'):format(node.file, node.line, node.source ~= ''
      and '  ' .. node.source:match '^%s*(.-)%s*$' or ''))
    print(('  value      %s, %s[%s]'):format(said(finding), finding.value.dtype,
      table.concat(finding.value.shape, ', ')))
  end
  print(('  run        %s, rank %d'):format(form.side, finding.part.rank))
  print(finding.difference == math.huge and '  difference a part is missing'
    or ('  difference %.3g of its norm; up to %g is rounding'):format(finding.difference,
      finding.limit))
  print_parts(finding)
end

local function print_result(compared)
  if #compared.first > 0 then
    local first = compared.first[1]
    print(('\n%d of the first weights differ, first %s by %s: B goes on with those of A.'):format(
      #compared.first, first.name, first.difference == math.huge and 'its shape, or B has none'
      or ('%.3g of its norm'):format(first.difference)))
  end
  if compared.finding then return print_finding(compared.finding) end
  print(('\nNo difference in %d step(s): %d values, %d gradients and %d weights compared, the '
    .. 'largest difference is %.2g of the norm.'):format(compared.steps, compared.values,
    compared.gradients, compared.weights, compared.worst))
  if compared.unseen > 0 then
    print(('%d values lie whole in neither run and were not compared.'):format(compared.unseen))
  end
end

-- Both sides of the command line, as far as they are to be run; a job that follows from the other.
local function sides(opts)
  local changes, b = opts.changes or {}, opts.job_b
  if b and not is_job(b) and not recording.is_one(b) then -- a change of both: B is A
    table.insert(changes, 1, b)
    b = nil
  end
  local first = side(opts.job_a, changes, opts.a or {}, opts)
  local second = side(b or opts.job_a, changes, opts.b or {}, opts)
  for _, path in ipairs { opts.job_a, b or opts.job_a } do
    if not is_job(path) and not recording.is_one(path) then
      fail('usage', 'cli.diff', ("'%s' is neither a job (.lua, .yaml) nor a recording"):format(path),
        'nnscaler run JOB --record FOLDER records a run')
    end
  end
  return first, second
end

--- Prints the report; returns the exit code.
---@param opts nnscaler.diff.Opts
---@return integer
function M.run(opts)
  local first, second = sides(opts)
  ranks.expect(nil)
  local a = recording.is_one(first.job) and recording.open(first.job)
  local b = recording.is_one(second.job) and recording.open(second.job)
  if not sets(first.changes, 'precision') and not sets(second.changes, 'precision') then
    local known = a or b
    local precision = 'precision=' .. (known and known.info.precision or 'fp64')
    for _, s in ipairs { first, second } do table.insert(s.changes, precision) end
  end
  if a then second.steps = math.min(second.steps, a.steps) end
  local folder = opts.record or os.tmpname()
  if not opts.record then os.remove(folder) end
  base.make_folder(folder)
  local ok, result = pcall(function()
    a = a or record(first, folder .. '/a')
    b = b or record(second, folder .. '/b', a.folder)
    describe('A', a)
    describe('B', b)
    local compared = difference.of(a, b, opts.limit)
    print_result(compared)
    return (compared.finding or #compared.first > 0) and 1 or 0
  end)
  if not opts.record then
    for _, name in ipairs { '/a', '/b', '' } do remove(folder .. name) end
  end
  if not ok then error(result, 0) end
  return result
end

return M
