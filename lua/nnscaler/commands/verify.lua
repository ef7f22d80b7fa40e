--- `nnscaler verify`: runs a job's model under its plan on rank threads in float64, beside
--- eager=true on one device, and reports what differs and where.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local parts = require 'nnscaler.trainer.parts'
local policies = require 'nnscaler.policies'
local ranks = require 'nnscaler.ranks'
local run = require 'nnscaler.commands.run'
local verify_op = require 'nnscaler.commands.verify_op'

local M = {}

---@class nnscaler.verify.Opts
---@field job? string path
---@field changes string[]
---@field op? string an operator is checked instead of a job
---@field steps? integer
---@field log_level? string

-- The worst rows of all ranks: one per thing compared, in order of first sight.
local function gather(results)
  local list, by_name = {}, {}
  for r, result in ipairs(results) do
    for _, row in ipairs(result.rows) do
      local key = ('%s %s %s'):format(row.what, row.name, tostring(row.zero or false))
      local known = by_name[key]
      if not known then
        list[#list + 1], by_name[key] = row, row
        row.rank = r - 1
      elseif row.difference > known.difference then
        known.difference, known.rank = row.difference, r - 1
      end
    end
  end
  return list
end

-- A line of the summary for all rows that `wanted` accepts.
local function summary(title, rows, wanted)
  local count, worst = 0, nil
  for _, row in ipairs(rows) do
    if wanted(row) then
      count = count + 1
      if not worst or row.difference / math.max(row.limit, 1e-300)
          > worst.difference / math.max(worst.limit, 1e-300) then
        worst = row
      end
    end
  end
  if count == 0 then return end
  print(('%-34s %5d   %-9s %-9s %s'):format(title, count, ('%.2g'):format(worst.difference),
    ('%g'):format(worst.limit), worst.difference > 0
    and ('%s, rank %d'):format(worst.name, worst.rank) or ''))
end

local function of(what, zero)
  return function(row) return row.what == what and (row.zero or false) == zero end
end

local function print_report(result, rows)
  print(result.title)
  print(('\n%-34s %5s   %-9s %-9s %s'):format('', 'count', 'worst', 'limit', 'where'))
  summary('loss', rows, of('loss', false))
  summary('weight of the step', rows, of('weight of the step', false))
  summary('norm before clipping', rows, of('gnorm', false))
  summary('first weights', rows, of('initial weight', false))
  summary('gradients of step 1', rows, of('gradient', false))
  summary('  zero by structure', rows, of('gradient', true))
  summary(('weights after %d steps'):format(result.steps), rows, of('weight', false))
  summary('  where the gradient is zero', rows, of('weight', true))
  summary('buffers', rows, of('buffer', false))
  local width, list = 0, {}
  for _, row in ipairs(rows) do
    if row.what == 'gradient' then
      list[#list + 1], width = row, math.max(width, #row.name)
    end
  end
  if #list == 0 then return end
  table.sort(list, function(a, b)
    if a.difference ~= b.difference then return a.difference > b.difference end
    return a.name < b.name
  end)
  print(('\n%s   gradient   rank'):format(('%-' .. width .. 's'):format('parameter')))
  for _, row in ipairs(list) do
    print(('%s   %-9s  %d%s'):format(('%-' .. width .. 's'):format(row.name),
      ('%.2g'):format(row.difference), row.rank, row.zero and '   zero by structure' or ''))
  end
end

--- As many ranks as a job asks for.
---@param job nnscaler.Job
---@return integer
function M.count_of(job)
  local config = job.compute_config or {}
  return config.runtime_ngpus or config.plan_ngpus or policies.devices(job.pas_policy) or 2
end

--- Prints the report; returns the exit code.
---@param opts nnscaler.verify.Opts
---@return integer
function M.run(opts)
  if opts.op then return verify_op.run(opts) end
  if not opts.job then
    fail('usage', 'cli.verify', 'JOB is missing', 'usage: nnscaler verify JOB [CHANGES…] [options]')
  end
  local steps = opts.steps or 3
  if steps < 1 then
    fail('usage', 'verify.steps', ('--steps is %d; expected 1 or more'):format(steps))
  end
  opts.steps = steps
  opts.log_level = opts.log_level or 'warning'
  local job = run.load(opts)
  if job.eager then
    fail('usage', 'verify.eager', 'eager=true is what the plan is compared with', 'leave it out')
  end
  parts.refuse(job, 'verify.parts')
  local count = M.count_of(job)
  ranks.expect(nil)
  local comm = require 'nnscaler._C.comm'
  local results = comm.run_local(count, 'nnscaler.commands.verify_rank', base.json_encode(opts))
  for r, text in ipairs(results) do results[r] = base.json_decode(text) end
  local rows, bad = gather(results), 0
  print_report(results[1], rows)
  for _, row in ipairs(rows) do
    local fits = row.difference <= row.limit -- NaN does not
    if not fits then bad = bad + 1 end
  end
  print(bad == 0 and '\nThe plan equals one device.'
    or ('\n%d of %d comparisons differ.'):format(bad, #rows))
  return bad == 0 and 0 or 1
end

--- Prints the parameters of a recipe.
M.help = run.help

return M
