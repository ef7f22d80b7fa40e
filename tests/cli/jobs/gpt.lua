--- A GPT of seconds with all that a resumed run must get right: dropout, accumulation, epochs of
--- windows with prefetching, an unfinished warm-up, evaluation. Writes the ids of its samples, and
--- can send itself a signal.
local ffi = require 'ffi' -- os.execute would keep SIGINT away while it runs
local nnscaler = require 'nnscaler'
local GPT = require 'nnscaler.models.gpt'
local nn = require 'nnscaler.nn'

ffi.cdef 'int kill(int, int); int getpid(void);'

local p = nnscaler.params {
  ids = { '', 'file for the ids of the samples of each step' },
  signal = { 0, 'number of a signal to send to itself' },
  at = { 0, 'after this step' },
  times = { 1, 'so often' },
  validating = { false, 'send it in the evaluation after that step' },
  by_index = { false, 'a model whose backward accumulates by index' },
}

local text = nnscaler.data.characters(nnscaler.data.shakespeare,
  { block = 16, validation = 0.1, sampling = 'epoch' })

local function send(trainer)
  if trainer.step ~= p.at then return end
  for _ = 1, p.times do ffi.C.kill(ffi.C.getpid(), p.signal) end
end

-- Beside the GPT's embedding, rows of a table by an index of tensors: many tokens, few rows.
local ByIndex = nn.class 'ByIndex'
function ByIndex:init(args)
  self.gpt = GPT(args)
  self.table = nn.Parameter { shape = { 3, 16 }, init = nn.init.normal(0, 0.1) }
end
function ByIndex:forward(sample)
  local loss, counts = self.gpt(sample)
  local rows = self.table[{ sample.x:remainder(3) }]
  return loss + rows:square():mean(), counts
end

return {
  model = function()
    local make = p.by_index and ByIndex or GPT
    return make { vocab = text.vocab, layers = 2, heads = 2, width = 16, block = 16, dropout = 0.1 }
  end,
  dataset = text,
  micro_batch_size = 2, grad_accumulation_steps = 2, max_train_steps = 20, max_val_steps = 2,
  val_every_n_train_steps = 6, enable_progress_bar = false, seed = 3,
  optimizer = { type = 'adamw', args = { lr = 1e-2 }, clip_gnorm = 1 },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 15, min_lr = 1e-3 } },
  checkpoint = { every_n_train_steps = 10 },
  hook = {
    on_train_step_start = function(trainer)
      if p.ids == '' then return end
      local file = assert(io.open(p.ids, 'a'))
      for k = 0, 1 do
        file:write(trainer.step + 1, ' ', table.concat(
          trainer.train_loader:ids(2 * trainer.step + k), ' '), '\n')
      end
      file:close()
    end,
    on_step_end = function(trainer)
      if not p.validating then send(trainer) end
    end,
    on_val_start = function(trainer)
      if p.validating then send(trainer) end
    end,
  },
}
