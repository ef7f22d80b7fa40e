--- When sums of gradients start, and how much of them counts as beside backward: with a clock and a
--- group of the test's own, so that no measured time decides.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local groups = require 'nnscaler.runtime.groups'
local rt = require 'nnscaler.runtime'
local states = require 'nnscaler.runtime.states'

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
    rt.accumulate(gradients, name, T.ones { 2 })
  end

  -- Backward makes one addend of a and two of b, whose set is the first of the program.
  local function some_states()
    return states.new {
      sets = { { ranks = { 0, 1 }, names = { 'b' } }, { ranks = { 0, 1 }, names = { 'a' } } },
      leaves = { { name = 'a', shape = { 2 }, dtype = 'float32' },
        { name = 'b', shape = { 2 }, dtype = 'float32' } },
      data = {}, some = { a = true, b = true },
      places = { a = { table = gradients, key = 'a' }, b = { table = gradients, key = 'b' } },
    }
  end

  local function finish(made, second)
    now = second
    made:sum(1, { 0, 1 })
    made:sum(2, { 0, 1 })
    made:wait()
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
    local made = some_states()
    add('b', 0)
    assert.same({}, started)
    add('b', 1)
    rt.start_sums({ states = made }, 1)
    assert.same({ 1 }, started)
    add('a', 5)
    rt.start_sums({ states = made }, 2)
    assert.same({ 1, 5 }, started)
    finish(made, 10)
    -- Under way from 1 to 16; 2 s to ask for them, and all waiting from 10 on.
    assert.same({ seconds = 15, hidden = 1 - 8 / 15 }, made:overlapped())
  end)

  it('keep the order of the program where a later one is ready first', function()
    local made = some_states()
    add('a', 0)
    add('b', 1)
    assert.same({}, started)
    add('b', 2)
    rt.start_sums({ states = made }, 2)
    assert.same({ 2, 3 }, started)
    finish(made, 20)
    assert.same({ seconds = 18, hidden = 1 - 2 / 18 }, made:overlapped())
  end)

  it('start after backward where it marks none', function()
    local made = some_states()
    add('b', 0)
    add('b', 1)
    add('a', 2)
    assert.same({}, started)
    finish(made, 3)
    assert.same({ 3, 4 }, started)
    assert.same({ seconds = 12, hidden = 0 }, made:overlapped())
  end)

  it('have no share before the first step', function()
    assert.is_nil(some_states():overlapped())
  end)

  it('take zeros of a rank that has no gradient, and what was put elsewhere', function()
    local made = some_states()
    gradients.a = T.full({ 2 }, 3)
    made:sum(1, { 0, 1 })
    made:sum(2, { 0, 1 })
    made:wait()
    assert.same({ 6, 6 }, gradients.a:tolist())
    assert.same({ 0, 0 }, gradients.b:tolist())
    assert.equal(2, made.copied)
    assert.is_true(made.absent.b)
  end)

  it('copy nothing: gradients lie one after another in one tensor, which is summed', function()
    local door = require 'nnscaler._C.tensor'
    local made = states.new {
      sets = { { ranks = { 0, 1 }, names = { 'b', 'a' } } },
      leaves = { { name = 'a', shape = { 2, 3 }, dtype = 'float64' },
        { name = 'b', shape = { 4 }, dtype = 'float64' } },
      data = {}, some = { a = true, b = true },
      places = { a = { table = gradients, key = 'a' }, b = { table = gradients, key = 'b' } },
    }
    rt.accumulate(gradients, 'a', T.full({ 2, 3 }, 2, { dtype = 'float64' }))
    rt.accumulate(gradients, 'a', T.full({ 2, 3 }, 1, { dtype = 'float64' }))
    rt.accumulate_copy(gradients, 'b', T.full({ 4 }, 5, { dtype = 'float64' }))
    local _, before = door.live()
    made:sum(1, { 0, 1 })
    made:wait()
    local _, after = door.live()
    assert.equal(before, after)
    assert.equal(0, made.copied)
    assert.same({ 10, 10, 10, 10, 6, 6, 6, 6, 6, 6 }, made.sets[1].flat:tolist())
    made.sets[1].flat:fill_(7)
    assert.same({ 7, 7, 7, 7 }, gradients.b:tolist())
    assert.same({ { 7, 7, 7 }, { 7, 7, 7 } }, gradients.a:tolist())
    made:reset()
    local _, left = door.live()
    assert.equal(80, after - left)
  end)
end)

describe('gradients that ranks sum', function()
  local C = require 'nnscaler._C.runtime'
  local gradients, made

  before_each(function()
    gradients = {}
    made = states.new {
      sets = { { ranks = { 0, 1 }, names = { 'b', 'a' } }, { names = { 'c' } } },
      leaves = { { name = 'a', shape = { 2, 3 }, dtype = 'float64' },
        { name = 'b', shape = { 4 }, dtype = 'float64' },
        { name = 'c', shape = { 2, 2 }, dtype = 'float64' } },
      data = {}, some = { a = true, b = true },
      places = { a = { table = gradients, key = 'a' }, b = { table = gradients, key = 'b' },
        c = { table = gradients, key = 'c' } },
    }
  end)

  it('lie one after another in one tensor', function()
    rt.accumulate(gradients, 'a', T.full({ 2, 3 }, 2, { dtype = 'float64' }))
    rt.accumulate(gradients, 'b', T.full({ 4 }, 3, { dtype = 'float64' }))
    assert.same({ 3, 3, 3, 3, 2, 2, 2, 2, 2, 2 }, made.sets[1].flat:tolist())
    made.sets[1].flat:mul_(2)
    assert.same({ 6, 6, 6, 6 }, gradients.b:tolist())
    rt.accumulate_copy(gradients, 'b', T.ones({ 4 }, { dtype = 'float64' }))
    assert.same({ 7, 7, 7, 7, 4, 4, 4, 4, 4, 4 }, made.sets[1].flat:tolist())
  end)

  it('have their first addend written there, and later ones elsewhere', function()
    local ops = require('nnscaler.ops').nnscaler
    local x, dy = T.ones({ 5, 3 }, { dtype = 'float64' }), T.ones({ 5, 2 }, { dtype = 'float64' })
    local before = C.copied_bytes()
    rt.accumulate(gradients, 'a', ops.linear_weight(dy, x, rt.into(gradients, 'a')))
    assert.equal(before, C.copied_bytes())
    assert.same({ 5, 5, 5, 5, 5, 5 }, made.sets[1].flat:narrow(0, 4, 6):tolist())
    assert.is_nil(rt.into(gradients, 'a'))
    rt.accumulate(gradients, 'a', ops.linear_weight(dy, x, rt.into(gradients, 'a')))
    assert.same({ { 10, 10, 10 }, { 10, 10, 10 } }, gradients.a:tolist())
    assert.equal(before, C.copied_bytes())
    rt.accumulate(gradients, 'b', T.ones({ 4 }, { dtype = 'float64' }))
    assert.equal(before + 32, C.copied_bytes())
    assert.is_nil(rt.into(gradients, 'c'))
  end)

  it('are forgotten with the tensor that they lie in', function()
    rt.accumulate(gradients, 'a', T.ones({ 2, 3 }, { dtype = 'float64' }))
    local _, bytes = require('nnscaler._C.tensor').live()
    made:reset()
    local _, after = require('nnscaler._C.tensor').live()
    assert.equal(80, bytes - after)
    assert.same({}, gradients)
  end)
end)

describe('a sum over ranks', function()
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

  it('copies nothing', function()
    local comm, all = require 'nnscaler._C.comm', {}
    for r, text in ipairs(comm.run_local(2, 'tests.lua.support.sums_rank', '')) do
      all[r] = base.json_decode(text)
      assert.equal(0, all[r].copied) -- of all gradients, products included
      assert.same({}, all[r].calls)
      assert.equal(1, all[r].sets)
      assert.equal(8 * 16 + 16 * 4, all[r].elements)
    end
    for name, mine in next, all[1].before do
      for i, row in ipairs(mine) do
        for k, x in ipairs(row) do
          assert.near(x + all[2].before[name][i][k], all[1].after[name][i][k], 1e-4)
          assert.equal(all[1].after[name][i][k], all[2].after[name][i][k])
        end
      end
    end
  end)
end)
