-- One rank alone decides something in a hook.
local nnscaler = require 'nnscaler'
local p = nnscaler.params {
  what = { 'stop', 'what it asks for', choices = { 'stop', 'save', 'evaluate', 'skip' } },
  on = { 'on_step_end', 'in which hook' }, who = { 1, 'rank' }, folder = { '', 'of files' },
}
local data = nnscaler.data.random_samples { size = 24, width = 4, classes = 2 }
return {
  model = { type = 'mlp', args = { sizes = { 4, 8, 2 } } },
  dataset = { type = function() return data end, train_args = {}, val_args = {} },
  micro_batch_size = 2, max_train_steps = 6, optimizer = 'sgd', threads = 1,
  val_every_n_train_steps = 1000, enable_progress_bar = false, gen_savedir = p.folder .. '/gen',
  checkpoint = { save_dir = p.folder .. '/ck', every_n_train_steps = 1000 },
  hook = { [p.on] = function(trainer)
    if nnscaler.rank() == p.who and trainer.step == 2 then trainer[p.what](trainer) end
  end },
}
