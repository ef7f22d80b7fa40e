--- The memory that a program tells of before it runs, against what the allocator counts.
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local core = require 'nnscaler._C.tensor'
local layers = require 'tests.lua.support.layers'
local lower = require 'nnscaler._C.lower'
local nn = require 'nnscaler.nn'
local trace = require 'nnscaler.trace'

local Net = nn.class 'Net'
function Net:init()
  self.fc = nn.Linear(64, 256, { bias = false })
  self.proj = nn.Linear(256, 32, { bias = false })
end
function Net:forward(x) return (self.proj(self.fc(x):relu()):pow(2):sum()) end

describe('memory of a program', function()
  it('is the sum of what is alive at each instruction', function()
    local x = T.empty({ 128, 64 })
    local m = lower.lower((trace.trace(Net(), { x }))):memory()
    local weights = 4 * (64 * 256 + 256 * 32)
    assert.equal(weights, m.parameters)
    assert.equal(weights, m.gradients)
    -- Kept: the activation (the input is not ours), what is squared, and the loss.
    assert.equal(4 * (128 * 256 + 128 * 32 + 1), m.saved)
    assert.equal(m.parameters + m.gradients + m.peak, m.total)
    assert.is_true(m.peak >= m.saved)
  end)

  it('is what the allocator counts', function()
    local model = layers.model { layers = 3, width = 64, inner = 192, vocab = 256 }
    local engine = Program.new(model, { seed = 1, device = 'cpu' })
    local x = T.randint(0, 256, { 4, 64 }, { dtype = 'int64', generator = T.generator(1) })
    local sample = { x = x, y = x }
    engine:train_step({ sample }, { step = 0 }) -- now gradients are there
    collectgarbage()
    local before = core.memory(true)
    engine:train_step({ sample }, { step = 1 })
    local _, peak = core.memory()
    local told = lower.lower(layers.graph(model, 4, 64)):memory().peak
    local counted = peak - before
    assert.is_true(counted <= 1.05 * told and counted >= 0.9 * told, ('%d told, %d counted')
      :format(told, counted))
  end)
end)
