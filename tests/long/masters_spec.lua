-- Masters keep bfloat16 weights learning: 1,000 steps of the cpu preset end where float32 does.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local shared = os.getenv 'NNSCALER_SHARED' or '../shared'
local text = shared .. '/data/tinyshakespeare/input.txt'

describe('the cpu preset', function()
  it('ends 1,000 steps in bfloat16 within 0.01 of the loss in float32', function()
    if base.file_exists(text) ~= 'file' then
      return pending(text .. ' is not there; set NNSCALER_SHARED')
    end
    local folder, remove = shell.folder()
    finally(remove)
    local losses = {}
    for _, precision in ipairs { 'fp32', 'bf16', 'bf16-mixed' } do
      local said, code = shell.nnscaler(('run recipes/nanogpt.lua preset=cpu data=%s precision=%s '
        .. 'stop_after_steps=1000 val_every_n_train_steps=1000 checkpoint.no_save=true '
        .. 'gen_savedir=%s/gen --metrics %s/%s.jsonl --log-level warning'):format(text, precision,
        folder, folder, precision))
      assert.equal(0, code, said)
      local last
      for line in base.file_read(('%s/%s.jsonl'):format(folder, precision)):gmatch '[^\n]+' do
        last = base.json_decode(line)
      end
      assert.equal(1000, last.step)
      losses[precision] = last.val_loss
    end
    print(('  validation losses after 1,000 steps: fp32 %.4f, bf16 %.4f, bf16-mixed %.4f'):format(
      losses.fp32, losses.bf16, losses['bf16-mixed']))
    assert.is_true(math.abs(losses.bf16 - losses.fp32) <= 0.01)
    assert.is_true(math.abs(losses['bf16-mixed'] - losses.fp32) <= 0.01)
  end)
end)
