-- A GPT whose ranks write the most memory that tensors took in each phase of a step, as the
-- allocator counted it, beside what was predicted: folder/<rank>. Counted are steps from the second
-- on, when the state of the optimizer is there.
local nnscaler = require 'nnscaler'
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'

local p = nnscaler.params {
  folder = { '', 'where ranks write' }, layers = { 2, 'blocks' }, width = { 32, 'of the model' },
  block = { 16, 'length of a sample' }, micro = { 4, 'samples of a micro-batch' },
  dropout = { 0.0, 'probability' }, clip = { 1.0, 'largest norm of gradients' },
  loss_chunk = { 0, 'tokens whose scores are made at a time; 0: all' },
}

local text = nnscaler.data.characters(nnscaler.data.shakespeare, { block = p.block })
local counted = { forward = 0, backward = 0, step = 0 }

local function note(phase, bytes) counted[phase] = math.max(counted[phase], bytes) end

-- Notes what is there at the end of each forward.
local function watch(engine)
  local forward = engine.forward
  engine.forward = function(...)
    local pass = forward(...)
    note('forward', (door.memory()))
    return pass
  end
end

return {
  model = { type = 'gpt', args = { vocab = text.vocab, layers = p.layers, heads = 2,
    width = p.width, block = p.block, dropout = p.dropout,
    loss_chunk = p.loss_chunk > 0 and p.loss_chunk or nil } },
  dataset = text, micro_batch_size = p.micro, max_train_steps = 5,
  optimizer = { type = 'adamw', args = { lr = 1e-3 }, clip_gnorm = p.clip },
  threads = 1, checkpoint = { no_save = true }, enable_progress_bar = false,
  hook = {
    after_setup = function(trainer) watch(trainer.engine) end,
    on_train_step_start = function(trainer)
      if trainer.step == 1 then counted = { forward = 0, backward = 0, step = 0 } end
      door.memory(true)
    end,
    on_train_step_end = function()
      note('backward', select(2, door.memory()))
      door.memory(true)
    end,
    on_step_end = function(trainer, step)
      note('step', select(2, door.memory()))
      if step < 5 then return end
      local out = { counted = counted, told = {}, kinds = trainer.memory }
      for phase, of in next, trainer.memory.phases do out.told[phase] = of.total end
      base.file_write(('%s/%d'):format(p.folder, nnscaler.rank()), base.json_encode(out))
    end,
  },
}
