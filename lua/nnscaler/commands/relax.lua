--- What would have to give way where no plan fits: of devices and rows of a micro-batch the
--- smallest change with which a plan is found. How much memory is enough, the search itself says;
--- that blocks run again in backward is among its choices.
local units = require 'nnscaler.units'
local plan = require 'nnscaler.commands.plan'
local run = require 'nnscaler.commands.run'

local M = {}

local kMost = 8 -- times as many devices, or as few rows, at most

-- Bytes of a device under the plan that is found with these changes; nil where there is none.
local function total_of(opts, world, hardware, more)
  local changes = { unpack(opts.changes) }
  for _, change in ipairs(more) do changes[#changes + 1] = change end
  local job = run.load { job = opts.job, changes = changes, log_level = 'error' }
  local ok, line, _, e = pcall(plan.make, job, world, hardware)
  if ok then return e.account.total end
  if type(line) ~= 'table' or line.kind ~= 'plan' and line.kind ~= 'usage' then error(line, 0) end
end

--- The changes, in words.
---@param opts { job: string, changes: string[] }
---@param world integer
---@param hardware string|nil
---@return string
function M.text(opts, world, hardware)
  local out, job = {}, run.load { job = opts.job, changes = opts.changes, log_level = 'error' }
  local function try(what, values, changes_of)
    local tried
    for _, value in ipairs(values) do
      local at, changes = changes_of(value)
      local bytes = total_of(opts, at, hardware, changes)
      tried = value
      if bytes then
        out[#out + 1] = ('%s %d: %s a device'):format(what, value, units.bytes(bytes))
        return
      end
    end
    if tried then out[#out + 1] = ('%s: not with %d'):format(what, tried) end
  end
  local more, fewer, k = {}, {}, 2
  while k <= kMost do
    more[#more + 1] = k * world
    if job.micro_batch_size % k == 0 then fewer[#fewer + 1] = job.micro_batch_size / k end
    k = 2 * k
  end
  local given = job.compute_config and job.compute_config.plan_ngpus
  try('--world', more, function(n)
    return n, given and { ('compute_config.plan_ngpus=%d'):format(given * n / world) } or {}
  end)
  try('micro_batch_size', fewer, function(n)
    local steps = (job.grad_accumulation_steps or 1) * job.micro_batch_size / n
    return world, { ('micro_batch_size=%d'):format(n), not job.global_batch_size
      and ('grad_accumulation_steps=%d'):format(steps) or nil }
  end)
  return 'what would fit instead: ' .. table.concat(out, '; ')
end

return M
