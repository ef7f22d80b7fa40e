-- Event files, read back by a reader of the format that shares nothing with the writer.
local base = require 'nnscaler._C.base'
local message = require 'tests.lua.support.message'
local nnscaler = require 'nnscaler'
local runs = require 'tests.lua.support.runs'
local tensorboard = require 'nnscaler.loggers.tensorboard'

local function read(path)
  local pipe = assert(io.popen(("python3 tests/lua/support/read_events.py '%s'"):format(path)))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  pipe:close()
  return lines
end

local function files(folder)
  local out = {}
  for _, name in ipairs(base.list_folder(folder)) do out[#out + 1] = folder .. '/' .. name end
  table.sort(out)
  return out
end

describe('TensorBoard files', function()
  local folder
  before_each(function() folder = runs.folder() end)
  after_each(function() runs.remove(folder) end)

  it('hold every number as float32, also those that are none', function()
    local logger = tensorboard { root_dir = folder, name = 'numbers' }
    logger:setup { step = 0 }
    local values = { 0, -0.0, 1, -1.5, 0.1, 1e-45, 1.4e-40, 2 ^ -126, 3.4e38, 1e39, -math.huge,
      1 + 2 ^ -24, 1 + 3 * 2 ^ -24, 16777217, 1 / 3, 2 ^ 30 - 1 }
    for step, value in ipairs(values) do
      logger:log_metrics({ x = value }, step, { tag = 'train' })
    end
    logger:log_metrics({ x = 0 / 0 }, 2 ^ 40, { tag = 'val' })
    logger:finalize()
    local lines = read(files(folder .. '/numbers')[1])
    assert.equal('brain.Event:2', lines[1])
    local expected = { '0', '-0', '1', '-1.5', '0.100000001', '1.40129846e-45', '1.39999526e-40',
      '1.17549435e-38', '3.39999995e+38', 'inf', '-inf', '1', '1.00000024', '16777216',
      '0.333333343', '1.07374182e+09' }
    for step, text in ipairs(expected) do
      assert.equal(('%d train/x=%s'):format(step, text), lines[step + 1])
    end
    assert.equal('1099511627776 val/x=nan', lines[#lines])
  end)

  it('follow a run, and a resumed one says where it begins', function()
    local function train(steps, resume_from)
      runs.trainer {
        model = { type = 'mlp', args = { sizes = { 8, 3 } } }, micro_batch_size = 4,
        dataset = nnscaler.data.random_samples { size = 40, width = 8, classes = 3 },
        optimizer = { type = 'sgd', args = { lr = 0.5 } }, max_train_steps = steps,
        checkpoint = { save_dir = folder .. '/c', resume_from = resume_from },
        log = { { type = 'tensorboard', args = { root_dir = folder .. '/tb' } } },
      }:run()
    end
    train(3)
    local lines = read(files(folder .. '/tb/run')[1])
    assert.equal(4, #lines)
    assert.matches('^3 train/epoch=0 train/train_loss=%S+ train/gnorm=%S+ train/lr=0.5 '
      .. 'train/tokens=4', lines[4])
    train(4, 'last')
    lines = read(files(folder .. '/tb/run')[2])
    assert.equal('4 start 1', lines[2])
    assert.matches('^4 train/epoch', lines[3])
  end)

  it('say what is wrong', function()
    assert.matches("%[log.tensorboard%] unknown key 'dir'; expected name, root_dir",
      message(tensorboard, { dir = 'x' }))
    assert.matches('root_dir is missing', message(tensorboard, {}))
    assert.matches('name is a number; expected a text', message(tensorboard,
      { root_dir = 'x', name = 3 }))
    assert.matches("nothing is named 'tensorbord'; expected csv, jsonl, tensorboard",
      message(require('nnscaler.loggers').new, { { type = 'tensorbord' } }))
  end)
end)
