--- A job of seconds with all that a resumed run must get right: samples with draws of their own,
--- made by workers; epochs that end in the middle of a run of steps; dropout; a warm-up that a kill
--- falls into. Each scale unit writes the ids of the samples of its steps.
local nnscaler = require 'nnscaler'
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'

local p = nnscaler.params {
  ids = { '', 'files for the ids of the samples of each step, one a unit' },
  at = { 0, 'this process gets a signal after this step' },
  signal = { 'KILL', 'which' },
  slow = { 0, 'seconds that pass after it' },
  once = { '', 'file that says that the process has ended so before' },
  nudge = { 0, 'a factor of weights before each step' },
  held = { 0, 'seconds that rank 0 is held up after each step' },
  pid = { '', 'file that says which process the last rank is' },
  broken = { -1, 'sample that cannot be read' },
}

local kWidth, kClasses = 8, 4

local data = {
  len = function() return 46 end,
  get = function(_, i)
    if i == p.broken then error('sample ' .. i .. ' cannot be read') end
    local noise = F.dropout(T.ones { kWidth }, 0.3, true) -- draws of its own, of both kinds
    local x = (T.arange(kWidth) * (i + 1)):to('float32'):sin() + noise + math.random() * 0.01
    return { x = x, y = T.full({}, i % kClasses, { dtype = 'int64' }) }
  end,
}

local Net = nn.class 'Net'
function Net:init()
  self.up, self.down = nn.Linear(kWidth, 16), nn.Linear(16, kClasses)
  self.drop = nn.Dropout(0.2)
end
function Net:forward(sample)
  return F.cross_entropy(self.down(self.drop(F.gelu(self.up(sample.x)))), sample.y)
end

return {
  model = function() return Net() end,
  dataset = { type = function() return data end },
  micro_batch_size = 2, global_batch_size = 8, max_train_steps = 20, max_epochs = 100,
  enable_progress_bar = false, seed = 3, threads = 1,
  optimizer = { type = 'adamw', args = { lr = 1e-2 }, clip_gnorm = 1 },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 15, min_lr = 1e-3 } },
  checkpoint = { every_n_train_steps = 10 },
  hook = {
    on_step_start = p.nudge ~= 0 and function(trainer)
      T.no_grad(function() trainer.model.up.weight:mul_(p.nudge) end)
    end or nil,
    on_train_step_start = p.ids ~= '' and function(trainer)
      if trainer.rank % (trainer.world_size / trainer.units) ~= 0 then return end
      local first, count = trainer.span:micro_batches(trainer)
      local file = assert(io.open(('%s.%d'):format(p.ids, trainer.unit), 'a'))
      for k = first + trainer.unit, first + count - 1, trainer.units do
        file:write(('%d %d:%s\n'):format(trainer.step + 1, k, table.concat(
          trainer.train_loader:ids(k), ',')))
      end
      file:close()
    end or nil,
    after_setup = p.pid ~= '' and function(trainer)
      if trainer.rank < trainer.world_size - 1 then return end
      local file = assert(io.open('/proc/self/stat'))
      local id = file:read '*n'
      file:close()
      file = assert(io.open(p.pid, 'w'))
      file:write(id)
      file:close()
    end or nil,
    on_step_end = function(trainer, step)
      if p.held > 0 and trainer.rank == 0 then os.execute('sleep ' .. p.held) end
      if step ~= p.at or trainer.rank ~= 0 then return end
      if p.once ~= '' then
        if io.open(p.once) then return end
        io.open(p.once, 'w'):close()
      end
      os.execute(('kill -%s $PPID; exec sleep %d >/dev/null 2>&1'):format(p.signal, p.slow))
    end,
  },
}
