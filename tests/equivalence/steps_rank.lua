--- A training run of steps_spec.lua: losses and norms of each step.
local GPT = require 'nnscaler.models.gpt'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local job = require 'nnscaler.job'
local trainer = require 'nnscaler.trainer'

local VOCAB, BLOCK, MICRO = 19, 8, 2

-- Micro-batch n: other texts each, some labels ignored, of every seventh all.
local dataset = {
  get = function(_, n)
    local g = T.generator(1000 + n)
    local tokens = T.randint(0, VOCAB, { MICRO, BLOCK + 1 }, { generator = g, dtype = 'int64' })
    local y = tokens:slice(1, 1):clone()
    y = y:masked_fill(T.rand(y.shape, { generator = g }):lt(n % 7 == 3 and 2 or 0.3), -100)
    return { x = tokens:slice(1, 0, -1):clone(), y = y }
  end,
  ids = function(_, n) return { n } end,
}

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'error'
  local out = { losses = {}, gnorms = {} }
  local config = job.from_table {
    model = function()
      return GPT { vocab = VOCAB, layers = 2, heads = 2, width = 8, block = BLOCK, bias = true,
        dropout = 0.1 }
    end,
    dataset = dataset, eager = case.eager, precision = 'fp64', seed = 3, threads = 1,
    micro_batch_size = MICRO, global_batch_size = 8, max_train_steps = 20,
    pas_policy = case.policy, pas_config = case.config,
    compute_config = { plan_ngpus = case.plan, runtime_ngpus = case.ranks,
      use_zero = case.zero },
    optimizer = { type = 'adamw', args = { lr = 1e-2, weight_decay = 0.1 }, clip_gnorm = 0.5 },
    lr_scheduler = { type = 'cosine', args = { warmup_steps = 5 } },
    checkpoint = { no_save = true }, enable_progress_bar = false,
    hook = {
      on_step_end = function(_, step, metrics)
        out.losses[step], out.gnorms[step] = metrics.train_loss, metrics.gnorm
      end,
    },
  }
  config.gen_savedir = nil
  trainer.new(config):run()
  return base.json_encode(out)
end
