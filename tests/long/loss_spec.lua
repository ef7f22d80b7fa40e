-- The cpu preset learns tinyshakespeare: validation loss of three seeds over the fixed full pass.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local shared = os.getenv 'NNSCALER_SHARED' or '../shared'
local text = shared .. '/data/tinyshakespeare/input.txt'

describe('the cpu preset', function()
  it('reaches a validation loss of 1.90', function()
    if base.file_exists(text) ~= 'file' then
      return pending(text .. ' is not there; set NNSCALER_SHARED')
    end
    local folder, remove = shell.folder()
    finally(remove)
    local losses, worst = {}, 0
    for seed = 0, 2 do
      local said, code = shell.nnscaler(('run recipes/nanogpt.lua preset=cpu data=%s seed=%d '
        .. 'val_every_n_train_steps=1000 checkpoint.no_save=true gen_savedir=%s/gen '
        .. '--metrics %s/%d.jsonl --log-level warning'):format(text, seed, folder, folder, seed))
      assert.equal(0, code, said)
      local last
      for line in base.file_read(('%s/%d.jsonl'):format(folder, seed)):gmatch '[^\n]+' do
        last = base.json_decode(line)
      end
      assert.equal(2000, last.step)
      losses[#losses + 1] = ('%.4f'):format(last.val_loss)
      worst = math.max(worst, last.val_loss)
    end
    print('  validation losses of seeds 0, 1, 2: ' .. table.concat(losses, ', '))
    assert.is_true(worst <= 1.90)
  end)
end)
