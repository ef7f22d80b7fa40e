-- A hook changes a number of the model, a dropout rate, what is trained, or what does not matter.
local nnscaler = require 'nnscaler'
local nn, T, F = nnscaler.nn, nnscaler.tensor, nnscaler.functional
local p = nnscaler.params {
  what = { 'beta', 'what changes',
    choices = { 'beta', 'drop', 'freeze', 'count', 'layer', 'alone' } },
  folder = { '', 'of files' },
}
local Net = nn.class 'Net'
function Net:init()
  self.a, self.b, self.d = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(0.1)
  self.config = { beta = 0.1 }
end
function Net:forward(s)
  local h = self.d(self.a(s.x):tanh())
  return F.cross_entropy(self.b(h), s.y) + self.config.beta * h:square():mean()
end
local changes = {
  beta = function(m, step) m.config.beta = 0.1 * step end,
  drop = function(m, step) m.d.p = step >= 3 and 0.5 or 0.1 end,
  freeze = function(m, step) m.a:requires_grad_(step ~= 3) end,
  count = function(m, step) m.steps = step end,
  layer = function(m) m.b = nn.Linear(6, 3) end,
  alone = function(m, step)
    if nnscaler.rank() == 1 and step == 3 then m.config.beta = 1 end
  end,
}
return {
  model = function() return Net() end,
  dataset = {
    len = function() return 40 end,
    get = function(_, i)
      return { x = T.randn({ 4 }, { generator = T.generator(i) }),
        y = T.tensor(i % 3, { dtype = 'int64' }) }
    end,
  },
  micro_batch_size = 4, global_batch_size = 8, max_train_steps = 5, threads = 1,
  precision = 'fp64', checkpoint = { no_save = true }, gen_savedir = p.folder .. '/gen',
  enable_progress_bar = false, optimizer = { type = 'sgd', args = { lr = 0.05 } },
  hook = { on_step_start = function(trainer, step) changes[p.what](trainer.model, step) end },
}
