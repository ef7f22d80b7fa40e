--- The job of reference.py, run by our trainer: same weights, same batches, same settings.
local C = require 'nnscaler._C.checkpoint'
local GPT = require 'nnscaler.models.gpt'
local job = require 'nnscaler.job'
local shapes = require 'nnscaler.checkpoint.shapes'
local nnscaler = require 'nnscaler'
local trainer = require 'nnscaler.trainer'

--- Trains and returns losses, gradient norms and the path of the final checkpoint.
---@param folder string of what reference.py wrote; the checkpoint is written below it
---@param dtype 'float32'|'float64'
---@param eager boolean
---@param precision? string by default that of the dtype
---@return { losses: number[], gnorms: number[], checkpoint: string }
return function(folder, dtype, eager, precision)
  precision = precision or (dtype == 'float64' and 'fp64' or 'fp32')
  local batches = C.read_safetensors(folder .. '/batches.safetensors')
  local x, y = batches:read 'x', batches:read 'y'
  local start = C.read_safetensors(('%s/start-%s.safetensors'):format(folder, dtype))
  local out = { losses = {}, gnorms = {} }
  local dataset = {
    get = function(_, n) return { x = x:select(0, n), y = y:select(0, n) } end,
    ids = function(_, n) return { n } end,
  }
  local run = trainer.new(job.from_table {
    model = function()
      return GPT { vocab = 31, layers = 2, heads = 2, width = 16, block = 12, bias = true }
    end,
    dataset = dataset, eager = eager, precision = precision,
    micro_batch_size = 4, grad_accumulation_steps = 3, max_train_steps = 50, threads = 1,
    optimizer = { type = 'adamw', args = { lr = 3e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1 },
      clip_gnorm = 1 },
    lr_scheduler = { type = 'cosine',
      args = { warmup_steps = 10, min_lr = 3e-4, decay_steps = 40 } },
    checkpoint = {
      save_dir = ('%s/%s-%s'):format(folder, precision, eager and 'eager' or 'program'),
    },
    gen_savedir = folder .. '/generated', enable_progress_bar = false,
    log_progress_every_n_train_steps = 1000,
    hook = {
      after_setup = function(t)
        local count = 0
        for _, p in ipairs(shapes.to_file(t.model, t.engine.parameters)) do
          nnscaler.tensor.no_grad(function() p.data:copy_(start:read(p.name)) end)
          count = count + 1
        end
        assert(count == #start:names(), 'the models have not the same parameters')
      end,
      on_step_end = function(_, step, metrics)
        out.losses[step], out.gnorms[step] = metrics.train_loss, metrics.gnorm
      end,
    },
  })
  run:run()
  out.checkpoint = run.last_checkpoint
  return out
end
