--- One rank of a run of `nnscaler diff`: trains and records, with the weights of another recording
--- before each step where one is given. Nothing else comes of the run.
local base = require 'nnscaler._C.base'
local record = require 'nnscaler.verify.record'
local recording = require 'nnscaler.verify.recording'
local run = require 'nnscaler.commands.run'

---@param argument string JSON of { job, changes, log_level, files, steps, folder, given }
---@return string
return function(argument)
  local opts = base.json_decode(argument)
  opts.changes = opts.changes or {}
  local job = run.load(opts)
  if not opts.files then job.gen_savedir = nil end
  job.checkpoint.no_save, job.log, job.metrics, job.enable_progress_bar = true, nil, nil, false
  record.attach(job, { folder = opts.folder, steps = opts.steps,
    given = opts.given and recording.open(opts.given) })
  table.insert(job.hook, {
    after_setup = function(t)
      t.val_loader, t.test_loader = nil, nil
      t.args.stop_after_steps = t.step + opts.steps
    end,
  })
  require('nnscaler.trainer').new(job):run()
  return 'done'
end
