-- A hook reads and writes weights; rank 0 prints what it sees of them.
local nnscaler = require 'nnscaler'
local nn, T, F = nnscaler.nn, nnscaler.tensor, nnscaler.functional
local p = nnscaler.params { folder = { '', 'of files' } }
local Net = nn.class 'Net'
function Net:init()
  self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
  self:register_buffer('scale', T.full({ 8 }, 0.5))
end
function Net:forward(s) return F.mse_loss(self.b(self.a(s.x):tanh() * self.scale), s.y) end
return {
  model = function() return Net() end,
  dataset = { len = function() return 24 end, get = function(_, i)
    local g = T.generator(i)
    return { x = T.randn({ 4 }, { generator = g }), y = T.randn({ 2 }, { generator = g }) }
  end },
  micro_batch_size = 2, global_batch_size = 4, max_train_steps = 3, threads = 1,
  precision = 'fp64', optimizer = 'sgd', checkpoint = { no_save = true },
  gen_savedir = p.folder .. '/gen', enable_progress_bar = false,
  hook = { on_step_end = function(trainer, step)
    for _, entry in ipairs(trainer.model:named_parameters()) do
      local weight = entry.param
      weight.data:clamp_(-0.3, 0.3)
      if step == 2 then weight.data = weight.data * 0.5 end
      local whole = weight:full()
      assert(table.concat(whole.shape, ' ') == table.concat(weight.shape, ' '))
      local part = whole
      for d, start in ipairs(weight.start or {}) do
        part = part:narrow(d - 1, start, weight.data.shape[d])
      end
      assert(part:equal(weight.data), 'the part that this rank holds')
      if nnscaler.rank() == 0 then
        print(('%d %s %.12g'):format(step, entry.name, whole:norm():item()))
      end
    end
    local scale = trainer.model:named_buffers()[1].buffer
    if nnscaler.rank() == 0 then print(step, scale.data:numel() == 0 or scale.data:sum():item()) end
  end },
}
