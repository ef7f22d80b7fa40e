--- The evaluations of one training run on some ranks: losses, how many samples hooks saw, and how
--- many messages were still to be handed over when a step or an evaluation ended.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler.runtime.groups'
local job = require 'nnscaler.job'
local nnscaler = require 'nnscaler'
local trainer = require 'nnscaler.trainer'

local function samples(size, seed)
  return nnscaler.data.random_samples { size = size, width = 8, classes = 3, seed = seed }
end

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'error'
  local out = { losses = {}, seen = 0, sent = 0, late = 0 }
  local under_way = 0
  local send, flush = comm.send, comm.flush
  function comm.send(...)
    out.sent, under_way = out.sent + 1, under_way + 1
    return send(...)
  end
  function comm.flush()
    flush()
    under_way = 0
  end
  local config = job.from_table {
    model = { type = 'mlp', args = { sizes = { 8, 16, 16, 3 } } },
    dataset = function() return { train = samples(48), val = samples(case.samples, 1) } end,
    eager = case.eager, precision = 'fp64', seed = 7, threads = 1,
    micro_batch_size = 2, global_batch_size = 12, max_train_steps = 2,
    val_every_n_train_steps = 1, pas_policy = case.policy,
    pas_config = case.config,
    compute_config = { plan_ngpus = case.plan, runtime_ngpus = case.ranks },
    optimizer = { type = 'sgd', args = { lr = 0.1 } },
    checkpoint = { no_save = true }, enable_progress_bar = false,
    hook = {
      on_val_step_end = function() out.seen = out.seen + 1 end,
      on_step_end = function() out.late = out.late + under_way end,
      on_val_end = function(_, loss)
        table.insert(out.losses, loss)
        out.late = out.late + under_way
      end,
    },
  }
  config.gen_savedir = nil
  trainer.new(config):run()
  return base.json_encode(out)
end
