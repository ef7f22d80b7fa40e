--- When sums of gradients start, and how much of them counts as beside backward: with a clock and a
--- group of the test's own, so that no measured time decides.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local groups = require 'nnscaler.runtime.groups'
local reducers = require 'nnscaler.runtime.reducer'

describe('sums of gradients', function()
  local clock, group = base.clock, groups.group
  local now, started, gradients

  -- A sum over two ranks with equal addends: asking for it takes 1 s, it arrives 10 s later.
  local function all_reduce_async(_, flat)
    started[#started + 1] = now
    now = now + 1
    local arrival = now + 10
    flat:mul_(2)
    return { done = function() return now >= arrival end,
      wait = function() now = math.max(now, arrival) end }
  end

  local function add(name, second)
    now = second
    reducers.accumulate(gradients, name, T.ones { 2 })
  end

  -- Backward makes one addend of a and two of b, whose bucket is the first of the program.
  local function reducer(overlap)
    local made = reducers.new {
      buckets = { { ranks = { 0, 1 }, names = { 'b' } }, { ranks = { 0, 1 }, names = { 'a' } } },
      shares = { { name = 'a', shape = { 2 }, dtype = 'float32', addends = 1 },
        { name = 'b', shape = { 2 }, dtype = 'float32', addends = 2 } },
      places = { a = { table = gradients, key = 'a' }, b = { table = gradients, key = 'b' } },
      overlap = overlap,
    }
    made:reset()
    made:arm { a = 1, b = 2 }
    return made
  end

  local function finish(made, second)
    now = second
    made:finish()
    assert.same({ 2, 2 }, gradients.a:tolist())
    assert.same({ 4, 4 }, gradients.b:tolist())
  end

  before_each(function()
    now, started, gradients = 0, {}, {}
    base.clock = function() return now end
    groups.group = function() return { all_reduce_async = all_reduce_async } end
  end)
  after_each(function() base.clock, groups.group = clock, group end)

  it('start in backward, each when its last addend is there', function()
    local made = reducer(true)
    add('b', 0)
    assert.same({}, started)
    add('b', 1)
    assert.same({ 1 }, started)
    add('a', 5)
    assert.same({ 1, 5 }, started)
    finish(made, 10)
    -- Under way from 1 to 16; 2 s to ask for them, and all waiting from 10 on.
    assert.same({ seconds = 15, hidden = 1 - 8 / 15 }, made:overlapped())
  end)

  it('keep the order of the program where a later one is ready first', function()
    local made = reducer(true)
    add('a', 0)
    add('b', 1)
    assert.same({}, started)
    add('b', 2)
    assert.same({ 2, 3 }, started)
    finish(made, 20)
    assert.same({ seconds = 18, hidden = 1 - 2 / 18 }, made:overlapped())
  end)

  it('start after backward where ranks run different programs', function()
    local made = reducer(false)
    add('b', 0)
    add('b', 1)
    add('a', 2)
    assert.same({}, started)
    finish(made, 3)
    assert.same({ 3, 4 }, started)
    assert.same({ seconds = 12, hidden = 0 }, made:overlapped())
  end)

  it('have no share before the first step', function()
    assert.is_nil(reducer(true):overlapped())
  end)

  it('copy nothing: gradients lie one after another in one tensor, which is summed', function()
    local made = reducers.new {
      buckets = { { ranks = { 0, 1 }, names = { 'b', 'a' } } },
      shares = { { name = 'a', shape = { 2, 3 }, dtype = 'float64' },
        { name = 'b', shape = { 4 }, dtype = 'float64' } },
      places = { a = { table = gradients, key = 'a' }, b = { table = gradients, key = 'b' } },
    }
    local door = require 'nnscaler._C.tensor'
    made:reset()
    reducers.accumulate(gradients, 'a', T.full({ 2, 3 }, 2, { dtype = 'float64' }))
    reducers.accumulate(gradients, 'a', T.full({ 2, 3 }, 1, { dtype = 'float64' }))
    reducers.accumulate_copy(gradients, 'b', T.full({ 4 }, 5, { dtype = 'float64' }))
    local _, before = door.live()
    made:finish()
    local _, after = door.live()
    assert.equal(before, after)
    assert.equal(0, made.copied)
    assert.same({ 10, 10, 10, 10, 6, 6, 6, 6, 6, 6 }, made.buckets[1].flat:tolist())
    made.buckets[1].flat:fill_(7)
    assert.same({ 7, 7, 7, 7 }, gradients.b:tolist())
    assert.same({ { 7, 7, 7 }, { 7, 7, 7 } }, gradients.a:tolist())
    gradients.a, gradients.b = nil, nil
    made:forget()
    local _, left = door.live()
    assert.equal(80, after - left)
  end)

  it('take zeros of a rank that has no gradient, and what was put elsewhere', function()
    local made = reducer(false)
    gradients.a = T.full({ 2 }, 3)
    made:finish()
    assert.same({ 6, 6 }, gradients.a:tolist())
    assert.same({ 0, 0 }, gradients.b:tolist())
    assert.equal(1, made.copied)
    assert.is_true(made.absent.b)
  end)
end)

describe('the sum of a real run', function()
  it('comes late where that is asked, and is the same as beside backward', function()
    local all = {}
    local comm = require 'nnscaler._C.comm'
    for r, text in ipairs(comm.run_local(2, 'tests.lua.support.late_sums_rank', '')) do
      all[r] = base.json_decode(text)
    end
    for _, one in ipairs(all) do
      assert.same(one.late, one.beside)
      assert.same(one.late, one.again) -- nothing is summed twice
      assert.equal(0, one.copied)
    end
    assert.same(all[1].late, all[2].late)
    for i, row in ipairs(all[1].addend) do
      for k, x in ipairs(row) do
        assert.near(x + all[2].addend[i][k], all[1].late[i][k], 1e-5)
        assert.truthy(math.abs(x - all[2].addend[i][k]) > 1e-6)
      end
    end
  end)
end)
