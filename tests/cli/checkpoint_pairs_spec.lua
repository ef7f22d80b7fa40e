-- What one plan has saved another loads: weights and moments bit for bit, and the loss that follows
-- is the same. The model has fused projections, which files hold in another shape.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local comm = require 'nnscaler._C.comm'
local shell = require 'tests.cli.support.shell'

local plans = {
  { 'one', 1, 'pas_policy=dp' }, { 'dp', 4, 'pas_policy=dp' }, { 'fsdp', 4, 'pas_policy=fsdp' },
  { 'tp', 4, 'pas_policy=tp' }, { 'pp', 4, 'pas_policy=pp' }, { 'hybrid', 4, 'pas_policy=hybrid' },
}

describe('checkpoints between plans', function()
  local folder, remove = shell.folder()
  teardown(remove)

  -- The losses of a run of three steps, or of what is left of them.
  local function run(plan, metrics, ...)
    local changes = { 'preset=tiny', 'layers=4', 'width=16', 'block=8', 'precision=fp64',
      'global_batch_size=8', 'micro_batch_size=2', 'threads=1', 'comm.backend=local',
      'max_train_steps=3', 'max_val_steps=1', 'enable_progress_bar=false', 'log_level=error',
      ('gen_savedir=%s/gen_%s'):format(folder, plan[1]), plan[3], ... }
    local file = ('%s/%s.jsonl'):format(folder, metrics)
    comm.run_local(plan[2], 'nnscaler.commands.run_rank', base.json_encode {
      job = 'tests/cli/jobs/pairs.lua', changes = changes, metrics = file })
    local losses = {}
    for line in base.file_read(file):gmatch '[^\n]+' do
      local row = base.json_decode(line)
      losses[row.step] = row.train_loss or losses[row.step]
    end
    return losses
  end

  for _, from in ipairs(plans) do
    it('go from ' .. from[1] .. ' to all', function()
      local save_dir = ('checkpoint.save_dir=%s/%s'):format(folder, from[1])
      local want = run(from, from[1], save_dir, 'checkpoint.every_n_train_steps=2',
        'checkpoint.save_best=false')
      local path = ('%s/%s/0000-0002'):format(folder, from[1])
      for _, to in ipairs(plans) do
        local got = run(to, from[1] .. '_' .. to[1], 'checkpoint.no_save=true',
          'checkpoint.resume_from=' .. path)
        assert.is_nil(got[2])
        assert.is_true(math.abs(got[3] - want[3]) <= 1e-11 * want[3], to[1])
      end
    end)
  end

  it('hold every slice once, in the files of four ranks', function()
    for _, name in ipairs { 'dp', 'fsdp', 'tp', 'pp', 'hybrid' } do
      local path = ('%s/%s/0000-0002'):format(folder, name)
      local saved, sizes, total = checkpoint.open(path), {}, 0
      saved:check()
      for r = 1, 4 do
        sizes[r] = 0
        for _, what in ipairs { 'model', 'optimizer' } do
          local file = ('%s/%s-%05d-of-00004.safetensors'):format(path, what, r)
          if base.file_exists(file) then
            local open = C.read_safetensors(file)
            for _, key in ipairs(open:names()) do sizes[r] = sizes[r] + open:info(key).bytes end
          end
        end
        total = total + sizes[r]
      end
      local whole = 0
      for _, weight in ipairs(saved:names()) do whole = whole + saved:read(weight):numel() * 8 end
      for _, state in ipairs(saved:optimizer()) do whole = whole + state.data:numel() * 8 end
      assert.equal(whole, total, name)
      for r = 1, 4 do assert.is_true(sizes[r] > 0, name) end
    end
  end)

  it('give text under every plan', function()
    local texts = {}
    for i, plan in ipairs(plans) do
      local out, code = shell.nnscaler(('generate %s/%s/0000-0002 --tokens 8 --seed 1'):format(
        folder, plan[1]))
      assert.equal(0, code, out)
      texts[i] = out
    end
    for i = 2, #texts do assert.equal(texts[1], texts[i]) end
  end)

  it('name a shard that is missing, torn or changed, on all ranks', function()
    local path = folder .. '/tp/0000-0002'
    local file = path .. '/model-00002-of-00004.safetensors'
    local bytes = base.file_read(file)
    local function refused()
      local ok, err = pcall(run, plans[2], 'refused', 'checkpoint.no_save=true',
        'checkpoint.resume_from=' .. path)
      assert.is_false(ok)
      return tostring(type(err) == 'table' and err.message or err)
    end
    os.remove(file)
    assert.matches("cannot be loaded; nothing was changed:.*cannot read "
      .. "'.*model%-00002%-of%-00004.safetensors'", refused())
    base.file_write(file, bytes:sub(1, -9))
    assert.matches("model%-00002%-of%-00004.safetensors' is not a valid safetensors file",
      refused())
    base.file_write(file, bytes:sub(1, -2) .. string.char((bytes:byte(-1) + 1) % 256))
    assert.matches("damaged: '.*' in 'model%-00002%-of%-00004.safetensors'", refused())
    base.file_write(file, bytes)
    local manifest = base.file_read(path .. '/manifest.json')
    base.file_write(path .. '/manifest.json', (manifest:gsub(
      '"file": "model%-00003', '"file": "../model-00003', 1)))
    assert.matches('has a slice that is none of it', refused())
  end)
end)
