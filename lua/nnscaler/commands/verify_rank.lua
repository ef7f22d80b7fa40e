--- One rank of `nnscaler verify`: trains under the plan; rank 0 also trains on one device, and
--- every rank compares its parts.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local eager = require 'nnscaler.runtime.eager'
local groups = require 'nnscaler.runtime.groups'
local run = require 'nnscaler.commands.run'
local setup = require 'nnscaler.trainer.setup'
local trainer = require 'nnscaler.trainer'
local trial = require 'nnscaler.verify.trial'

local function title(t, steps)
  local policy = t.args.pas_policy or 'dp'
  return ('%s under %s: %d rank(s), %d device(s) a plan, %d scale unit(s); %d step(s) of %d '
    .. 'micro-batch(es) of %d sample(s) in float64'):format(t.args.name or 'the job',
    type(policy) == 'string' and policy or "the recipe's policy", t.world_size,
    t.sharing and t.sharing.plan_ngpus or 1, t.units, steps, t.span.per_step,
    t.args.micro_batch_size)
end

---@param argument string options of `nnscaler verify` as JSON
---@return string JSON of { title, steps, rows }
return function(argument)
  local opts = base.json_decode(argument)
  opts.changes = opts.changes or {}
  table.insert(opts.changes, 'precision=fp64')
  local job = run.load(opts)
  job.gen_savedir = nil -- no files
  local t = trainer.new(job)
  setup.build(t)
  local how = {
    optimizer = job.optimizer, clip_gnorm = job.optimizer.clip_gnorm, seed = job.seed or 0,
  }
  local got = trial.run(t.engine, trial.samples(t, opts.steps, t.unit, t.units), how)
  local want
  if t.rank == 0 then
    local model = setup.model(job)
    setup.cast_model(model, job)
    want = trial.run(eager.new(model, job), trial.samples(t, opts.steps, 0, 1), how)
  end
  if comm.current():size() > 1 then want = trial.share(want, groups.group(groups.all_ranks())) end
  local rows = trial.compare(got, want, function(name, whole)
    return t.sharing and t.sharing:part(name, whole) or whole
  end)
  for _, row in ipairs(rows) do row.limit = trial.limit(row) end
  return base.json_encode { title = title(t, opts.steps), steps = opts.steps, rows = rows }
end
