-- Training on a GPU, where LibTorch finds one: the same losses as on the CPU, by both engines, and
-- in 16 bits about those of float32 there.
local T = require 'nnscaler.tensor'
local nnscaler = require 'nnscaler'
local runs = require 'tests.lua.support.runs'

local folder = runs.folder()
teardown(function() runs.remove(folder) end)

local function losses(device, eager, precision)
  local text = nnscaler.data.characters(nnscaler.data.shakespeare, { block = 16 })
  local list = {}
  local trainer = runs.trainer {
    model = { type = 'gpt',
      args = { vocab = text.vocab, layers = 2, heads = 2, width = 16, block = 16, dropout = 0.1 } },
    dataset = text, micro_batch_size = 2, max_train_steps = 5, max_val_steps = 1,
    device = device, eager = eager, gen_savedir = folder .. '/gen', precision = precision,
    optimizer = { type = 'adamw', args = { lr = 1e-3 } },
    hook = { on_step_end = function(_, step, metrics) list[step] = metrics.train_loss end },
  }
  trainer:run()
  return list, trainer
end

describe('training on a GPU', function()
  for _, eager in ipairs { true, false } do
    it(eager and 'eagerly' or 'as a generated program', function()
      if not T.has_cuda() then return pending 'LibTorch finds no GPU here' end
      local want, got = losses('cpu', true, 'fp64'), losses('cuda', eager, 'fp64')
      assert.equal(5, #got)
      for step, loss in ipairs(want) do
        assert.is_true(math.abs(loss - got[step]) <= 1e-9 * loss, ('step %d'):format(step))
      end
    end)
  end
end)

describe('training on a GPU in 16 bits', function()
  for _, precision in ipairs { 'bf16-mixed', '16-mixed', 'bf16' } do
    for _, eager in ipairs { true, false } do
      it(precision .. (eager and ', eagerly' or ', as a generated program'), function()
        if not T.has_cuda() then return pending 'LibTorch finds no GPU here' end
        local want = losses('cpu', true, 'fp32')
        local got, trainer = losses('cuda', eager, precision)
        assert.equal(5, #got)
        for step, loss in ipairs(want) do
          assert.is_true(math.abs(loss - got[step]) <= 2e-2 * loss, ('step %d'):format(step))
        end
        assert.equal(precision == '16-mixed', trainer.loss_scale ~= nil)
      end)
    end
  end
end)
