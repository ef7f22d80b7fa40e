-- Learning-rate schedules against values computed by hand.
local message = require 'tests.lua.support.message'
local schedules = require 'nnscaler.schedules'

local function near(expected, actual)
  assert.is_true(math.abs(expected - actual) <= 1e-15, expected .. ' expected, got ' .. actual)
end

describe('lr schedules', function()
  it('is constant without a configuration', function()
    local lr = schedules.new(nil, { lr = 0.25, total_steps = 10 })
    for t = 0, 12 do assert.equal(0.25, lr(t)) end
  end)

  it('warms up linearly', function()
    local lr = schedules.new({ type = 'constant', args = { warmup_steps = 4 } },
      { lr = 1, total_steps = 10 })
    near(0.2, lr(0)); near(0.4, lr(1)); near(0.6, lr(2)); near(0.8, lr(3)); near(1, lr(4))
  end)

  it('decays linearly to min_lr at the horizon and stays there', function()
    local lr = schedules.new({ type = 'linear', args = { min_lr = 0.1, warmup_steps = 2 } },
      { lr = 1.1, total_steps = 12 })
    near(1.1, lr(2)); near(0.6, lr(7)); near(0.2, lr(11)); near(0.1, lr(12)); near(0.1, lr(99))
  end)

  it('follows a cosine', function()
    local lr = schedules.new({ type = 'cosine', args = { min_lr = 1, warmup_steps = 1 } },
      { lr = 3, total_steps = 13 })
    near(1.5, lr(0)); near(3, lr(1)); near(2 + math.sqrt(3) / 2, lr(3)); near(2.5, lr(5))
    near(2, lr(7)); near(1.5, lr(9)); near(1, lr(13)); near(1, lr(14))
  end)

  it('ends at decay_steps when given', function()
    local lr = schedules.new({ type = 'cosine', args = { decay_steps = 4 } },
      { lr = 1, total_steps = 100 })
    near(0.5, lr(2)); near(0, lr(4)); near(0, lr(50))
  end)

  it('counts epochs', function()
    local lr = schedules.new({ type = 'linear', interval = 'epoch' },
      { lr = 4, total_steps = 12, steps_per_epoch = 3 })
    for t = 0, 2 do near(4, lr(t)) end
    for t = 3, 5 do near(3, lr(t)) end
    near(1, lr(11))
  end)

  it('takes a function of the user', function()
    local lr = schedules.new({ type = function(args, context)
      return function(t) return context.lr / (args.slow + t) end
    end, args = { slow = 2 } }, { lr = 1, total_steps = 5 })
    near(0.5, lr(0)); near(0.2, lr(3))
  end)

  it('names what it does not know', function()
    local function refusal(...) return message(schedules.new, ...) end
    local context = { lr = 1, total_steps = 5 }
    assert.matches("nothing is named 'cosin'; expected constant, cosine, linear",
      refusal({ type = 'cosin' }, context))
    assert.matches("unknown key 'warmup' of schedule 'cosine'",
      refusal({ type = 'cosine', args = { warmup = 3 } }, context))
    assert.matches("unknown interval 'week'", refusal({ interval = 'week' }, context))
    assert.matches("interval 'epoch' on a data set without epochs",
      refusal({ interval = 'epoch' }, context))
  end)
end)
