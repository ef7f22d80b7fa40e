-- `nnscaler checkpoint inspect`: what it prints.
local C = require 'nnscaler._C.checkpoint'
local T = require 'nnscaler.tensor'
local checkpoint = require 'nnscaler.checkpoint'
local command = require 'nnscaler.commands.checkpoint'

local dir = os.tmpname() .. '.d'
teardown(function() os.execute("rm -rf '" .. dir .. "'") end)

local function printed(opts)
  local lines, own = {}, print
  rawset(_G, 'print', function(text) lines[#lines + 1] = text end)
  local ok, result = pcall(command.run, opts)
  rawset(_G, 'print', own)
  if not ok then error(result, 0) end
  assert.equal(0, result)
  return table.concat(lines, '\n')
end

describe('checkpoint inspect', function()
  local path = checkpoint.save(dir, {
    epoch = 1, step = 1200, state = { best_loss = 1.25, train_loss = 1.5 },
    weights = { { name = 'wte.weight', data = T.zeros { 1000, 64 } },
      { name = 'mean', data = T.zeros { 3 }, persistent = true } },
    optimizer = { { parameter = 'wte.weight', name = 'exp_avg', data = T.zeros { 1000, 64 } } },
    aliases = { { alias = 'head.weight', name = 'wte.weight' } },
  })

  it('shows tensors, sizes, step and losses', function()
    assert.equal(table.concat({
      C.real_path(path),
      'epoch 1, step 1200, train loss 1.5, best loss 1.25',
      'tensor       shape         dtype    elements       size',
      'wte.weight   [1000, 64]    float32    64,000  250.0 KiB  exp_avg',
      'mean         [3]           float32         3       12 B  buffer',
      'head.weight  = wte.weight',
      '2 tensors, 64,003 elements, 250.0 KiB; optimizer: 1 tensors, 250.0 KiB; all checksums are '
        .. 'right',
    }, '\n'), printed { action = 'inspect', checkpoint = dir })
  end)

  it('shows one file', function()
    local file = path .. '/optimizer.safetensors'
    assert.equal(file .. '\n' .. table.concat({
      'tensor              shape       dtype    elements       size',
      'wte.weight/exp_avg  [1000, 64]  float32    64,000  250.0 KiB',
      '1 tensors, 64,000 elements, 250.0 KiB',
    }, '\n'), printed { action = 'inspect', checkpoint = file })
  end)

  it('prints JSON', function()
    local text = printed { action = 'inspect', checkpoint = path, json = true }
    local back = require('nnscaler._C.base').json_decode(text)
    assert.equal(1200, back.manifest.step)
    assert.equal(1.25, back.state.best_loss)
  end)

  it('says what it cannot do', function()
    assert.error_matches(function() printed { action = 'merge', checkpoint = path } end,
      "unknown action 'merge'; expected inspect or export")
    assert.error_matches(function() printed { action = 'inspect', checkpoint = '/nowhere' } end,
      "there is no checkpoint 'last' in '/nowhere'")
  end)
end)
