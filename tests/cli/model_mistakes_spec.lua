-- What the user reads whose model is wrong: operator, module path, shapes, lines.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local recipe = [[
local nnscaler = require 'nnscaler'
local nn = nnscaler.nn
local Part = nn.class 'Part'
function Part:init() self.fc = nn.Linear(%d, 3) end
function Part:forward(x) return self.fc(x) end
local Net = nn.class 'Net'
function Net:init() self.part = Part() end
function Net:forward(sample) %s end
return {
  model = function() return Net() end,
  dataset = nnscaler.data.random_samples { size = 8, width = 4, classes = 3 },
  micro_batch_size = 2, max_train_steps = 1, optimizer = 'adamw',
}
]]

-- Runs a job of this width and body of forward, by both engines; each has to say all texts.
local function refused(width, forward, ...)
  base.file_write(folder .. '/r.lua', recipe:format(width, forward))
  for _, eager in ipairs { 'true', 'false' } do
    local said, code = shell.nnscaler(('run %s/r.lua eager=%s threads=1 checkpoint.save_dir=%s/ck '
      .. 'gen_savedir=%s/gen'):format(folder, eager, folder, folder))
    assert.equal(1, code, said)
    for _, text in ipairs { ... } do assert.truthy(said:find(text, 1, true), said) end
    assert.is_nil(base.file_exists(folder .. '/ck'))
  end
  return shell.nnscaler(('run %s/r.lua threads=1 gen_savedir=%s/gen checkpoint.no_save=true')
    :format(folder, folder))
end

describe('a model', function()
  it('whose shapes do not fit', function()
    local traced = refused(5, 'return self.part(sample.x):mean()', 'linear', 'part.fc', '[2, 4]',
      '[3, 5]', '/r.lua:8: in function')
    assert.matches('r.lua:5: `function Part:forward', traced, 1, true)
  end)

  it('whose loss is not a scalar', function()
    refused(4, 'return self.part(sample.x)', '[2, 3]', 'scalar')
  end)

  it('that raises an error of its own', function()
    refused(4, 'error "no such thing"', 'r.lua:8: no such thing', 'stack traceback')
  end)
end)
