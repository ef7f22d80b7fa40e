--- One rank of a run of `nnscaler diff`: trains and records, with the weights of another recording
--- before each step where one is given.
local base = require 'nnscaler._C.base'
local init_from = require 'nnscaler.trainer.init_from'
local record = require 'nnscaler.verify.record'
local recording = require 'nnscaler.verify.recording'
local run = require 'nnscaler.commands.run'
local setup = require 'nnscaler.trainer.setup'
local store = require 'nnscaler.runtime.store'
local trainer = require 'nnscaler.trainer'
local trial = require 'nnscaler.verify.trial'

-- Of a recorded run's weights, those that this model has in the same shape.
local function shared(weights, model)
  local shapes, list = {}, {}
  for _, entry in ipairs(model:named_parameters()) do shapes[entry.name] = entry.param.shape end
  for _, entry in ipairs(model:named_buffers()) do shapes[entry.name] = entry.buffer.shape end
  for _, whole in ipairs(weights) do
    local shape = shapes[whole.name]
    if shape and table.concat(shape, ' ') == table.concat(whole.data.shape, ' ') then
      list[#list + 1] = whole
    end
  end
  return list
end

---@param argument string JSON of { job, changes, log_level, files, steps, folder, given }
---@return string
return function(argument)
  local opts = base.json_decode(argument)
  opts.changes = opts.changes or {}
  local job = run.load(opts)
  if not opts.files then job.gen_savedir = nil end
  local recorder = record.new(opts.folder)
  local t = trainer.new(job)
  setup.build(t)
  t.store = store.of_engine(t.model, t.engine, t.sharing)
  init_from.run(t)
  local steps = trial.samples(t, opts.steps, t.unit, t.units)
  if not t.sharing then t.engine:compile(steps[1][1], true) end
  recorder:start(t, { changes = opts.changes, precision = job.precision })
  local given = opts.given and recording.open(opts.given)
  trial.run(t.engine, steps, {
    optimizer = job.optimizer, clip_gnorm = job.optimizer.clip_gnorm, seed = job.seed or 0,
    before = function(step)
      if given then t.store:load_weights(shared(given:weights(step), t.model)) end
      recorder:before()
    end,
    summed = function(result, gnorm) recorder:gradients(result, gnorm) end,
    after = function() recorder:after() end,
  })
  return 'done'
end
