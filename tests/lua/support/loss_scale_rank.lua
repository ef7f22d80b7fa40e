--- A float16 run on several ranks in which the gradients of one overflow in one step: the scale and
--- the sum of its weights that each rank has after every step.
local base = require 'nnscaler._C.base'
local job = require 'nnscaler.job'
local nnscaler = require 'nnscaler'
local trainer = require 'nnscaler.trainer'

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'error'
  local out = { scales = {}, weights = {} }
  local config = job.from_table {
    model = { type = 'mlp', args = { sizes = { 8, 16, 16, 3 } } },
    dataset = nnscaler.data.random_samples { size = 64, width = 8, classes = 3 },
    precision = case.precision, seed = 7, threads = 1, micro_batch_size = 2, global_batch_size = 4,
    max_train_steps = 6, pas_policy = case.policy,
    compute_config = { plan_ngpus = case.plan, runtime_ngpus = 2 },
    optimizer = { type = 'adamw', args = { lr = 0.01 } },
    checkpoint = { no_save = true }, enable_progress_bar = false,
    hook = {
      after_setup = function(t) t.loss_scale.factor = 64 end,
      before_sync_grad = function(t)
        if t.rank ~= case.rank or t.step ~= 3 then return end
        for _, parameter in ipairs(t.engine.parameters) do
          local gradient = t.engine:grad(parameter.name)
          if gradient then gradient:fill_(math.huge) end
        end
      end,
      on_step_end = function(t, step)
        out.scales[step] = t.loss_scale.factor
        local sum = 0
        for _, parameter in ipairs(t.engine.parameters) do
          sum = sum + parameter.data:detach():to('float64'):sum():item()
        end
        out.weights[step] = sum
      end,
    },
  }
  config.gen_savedir = nil
  trainer.new(config):run()
  return base.json_encode(out)
end
