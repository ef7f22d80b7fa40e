--- A training run of garbage_spec.lua: bytes of tensors that all ranks hold after each step, while
--- the collector stands still.
local GPT = require 'nnscaler.models.gpt'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local job = require 'nnscaler.job'
local nnscaler = require 'nnscaler'
local trainer = require 'nnscaler.trainer'

local VOCAB, BLOCK = 64, 16

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'error'
  local seen = {}
  local x = T.arange(2 * BLOCK):to('int64'):view { 2, BLOCK }
  local config = job.from_table {
    model = function()
      return GPT { vocab = VOCAB, layers = 2, heads = 2, width = 64, block = BLOCK }
    end,
    dataset = {
      get = function() return { x = x, y = x } end,
      ids = function(_, n) return { n } end,
    },
    seed = 3, threads = 1, micro_batch_size = 2, global_batch_size = 8, max_train_steps = 12,
    pas_policy = case.policy, compute_config = { plan_ngpus = case.plan, runtime_ngpus = 2 },
    optimizer = { type = 'adamw', clip_gnorm = 0.5 },
    checkpoint = { no_save = true }, enable_progress_bar = false,
    hook = {
      on_step_end = function(_, step)
        if step == 3 then
          collectgarbage()
          collectgarbage 'stop'
        end
        nnscaler.barrier() -- the ranks share one count
        seen[step] = door.memory()
        nnscaler.barrier()
      end,
    },
  }
  config.gen_savedir = nil
  trainer.new(config):run()
  return base.json_encode(seen)
end
