-- fail, sorted, log and the spec runner itself.
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

describe('fail', function()
  it('raises an error with area, kind and hint', function()
    local ok, err = pcall(fail, 'data', 'text.open', 'empty file: a.txt', 'pass another')
    assert.is_false(ok)
    assert.equal('data', err.kind)
    assert.equal('[text.open] empty file: a.txt\nhint: pass another', tostring(err))
    assert.matches('stack traceback', err.traceback)
  end)

  it('refuses an unknown kind', function()
    assert.error_matches(function() fail('oops', 'a.b', 'c') end, "no error kind 'oops'")
  end)
end)

describe('sorted_pairs', function()
  it('gives numbers, then strings, ascending', function()
    local seen = {}
    for key, value in sorted.sorted_pairs { b = 1, a = 2, [10] = 3, [2] = 4 } do
      seen[#seen + 1] = key .. '=' .. value
    end
    assert.same({ '2=4', '10=3', 'a=2', 'b=1' }, seen)
  end)

  it('refuses keys without an order', function()
    assert.error_matches(function() sorted.sorted_keys { [{}] = 1 } end, 'a table key has no order')
  end)
end)

describe('strict globals', function()
  it('refuse reading an undeclared name', function()
    assert.error_matches(function() return _G.lyaers end, "undeclared global 'lyaers' read")
  end)
end)

describe('the runner', function()
  local order = {}
  setup(function() order[#order + 1] = 'setup' end)
  before_each(function() order[#order + 1] = 'before' end)
  after_each(function() order[#order + 1] = 'after' end)

  it('runs first', function() order[#order + 1] = 'first' end)
  it('runs hooks around each test', function()
    assert.same({ 'setup', 'before', 'first', 'after', 'before' }, order)
  end)
end)
