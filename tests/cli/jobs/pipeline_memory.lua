-- A pipeline whose ranks write the most memory that tensors took in a step, as the allocator
-- counted it, and what the program told: folder/<rank>. A rank that runs ahead of another holds
-- messages on top of what its program needs: the step that took least counts.
local nnscaler = require 'nnscaler'
local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.tensor'
local nn, T = nnscaler.nn, nnscaler.tensor

local p = nnscaler.params {
  folder = { '', 'where ranks write' }, rows = { 512, 'samples of a micro-batch' },
}

local WIDTH, BLOCKS = 8, 8

-- What passes between stages is little beside what they keep: when a message is gone depends on who
-- waits for whom.
local Block = nn.class 'Block'
function Block:init()
  self.fc = nn.Linear(WIDTH, 64 * WIDTH, { bias = false })
  self.proj = nn.Linear(64 * WIDTH, WIDTH, { bias = false })
end
function Block:forward(x) return self.proj(self.fc(x):relu()) + x end

local Net = nn.class 'Net'
function Net:init()
  self.blocks = nn.ModuleList()
  for _ = 1, BLOCKS do self.blocks:append(Block()) end
end
function Net:forward(s)
  local x = s.x
  for _, block in ipairs(self.blocks) do x = block(x) end
  return x:square():mean()
end

local before, least = 0, math.huge

local function told(trainer)
  local shared = trainer.engine.sharing
  local order = shared.stages:order(shared.micro_batches, true)
  return trainer.engine.first:memory(order)
end

return {
  model = function() return Net() end,
  dataset = {
    len = function() return 16 * p.rows end,
    get = function(_, i) return { x = T.randn({ WIDTH }, { generator = T.generator(i) }) } end,
  },
  micro_batch_size = p.rows, grad_accumulation_steps = 8, max_train_steps = 8, optimizer = 'sgd',
  threads = 1, checkpoint = { no_save = true }, enable_progress_bar = false,
  hook = {
    on_train_step_start = function()
      collectgarbage()
      before = core.memory(true)
    end,
    on_train_step_end = function(trainer)
      local _, peak = core.memory()
      least = math.min(least, peak - before)
      local m = told(trainer)
      base.file_write(('%s/%d'):format(p.folder, nnscaler.rank()), base.json_encode {
        counted = least, peak = m.peak, gradients = m.gradients, in_flight = m.in_flight,
      })
    end,
  },
}
