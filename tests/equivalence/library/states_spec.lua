--- States, hooks, dummies, shapes and inference of parallel modules on rank threads.
local base = require 'nnscaler._C.base'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.library.models'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local runs = require 'tests.lua.support.runs'

local function run(ranks, case)
  return on_ranks(ranks, 'tests.equivalence.library.ranks', case)
end

local function near(a, b) assert.is_true(math.abs(a - b) <= 1e-10 * math.abs(b), a .. ' ' .. b) end

local function has(text, part) assert.is_truthy(text:find(part, 1, true), text) end

describe('the state of parallel modules', function()
  for _, case in ipairs {
    { 2, 2, 1 }, { 2, 1, 2 }, { 4, 2, 4 }, { 4, 2, 1, 1, 3 }, { 4, 1, 2, 2, 1 }, { 2, 1, 2, 1 },
  } do
    local zero, other = case[4], case[5]
    it(('merges from %d ranks, plan %d, into plan %d, zero %d into %d'):format(case[1], case[2],
      case[3], zero or 0, other or 0), function()
      for _, got in ipairs(run(case[1], { run = 'merge', plan = case[2], other = case[3],
        zero = zero, other_zero = other })) do
        near(got.parallel, got.plain)
        near(got.two.norm, got.one.norm)
        near(got.two.sum, got.one.sum)
        assert.are.equal(0, got.full)
        assert.is_true(got.gathered)
        has(got.differs, "'first.weight' differs between ranks 0 and 1")
        if case[2] > 1 then has(got.missing, 'merge the states of all ranks') end
      end
    end)
  end

  it('is saved without copies and loaded back', function()
    local results = run(4, { run = 'dedup', plan = 2 })
    for r, got in ipairs(results) do
      near(got.two.norm, got.one.norm)
      near(got.two.sum, got.one.sum)
      assert.are.equal(2, got.whole)
      if r > 2 then assert.are.equal(0, got.names) end
    end
    assert.is_true(results[1].names > results[2].names)
  end)

  it('is saved without copies where it rests in shards', function()
    for _, zero in ipairs { 1, 2, 3 } do
      for _, got in ipairs(run(4, { run = 'dedup', plan = 2, zero = zero })) do
        near(got.two.norm, got.one.norm)
        near(got.two.sum, got.one.sum)
        assert.are.equal(2, got.whole)
      end
    end
  end)

  it('goes from ranks with values to those without', function()
    for r, got in ipairs(run(4, { run = 'broadcast', plan = 2 })) do
      assert.is_true(got.distance <= 1e-12)
      if r > 2 then
        has(got.before, "of Whole has no values yet")
      end
    end
  end)

  it('is sent with the programs under broadcast_strategy = all', function()
    local results = run(2, { run = 'all' })
    assert.are.equal('number', type(results[1].all))
    assert.are.equal(results[1].all, results[2].all)
    for _, strategy in ipairs { 'no_weights', 'code' } do
      assert.are.equal(results[1].all, results[1][strategy])
      has(results[2][strategy], 'of Whole has no values yet')
    end
  end)
end)

describe('gradients over ranks', function()
  it('are not read before their sum, and pass hooks', function()
    for _, got in ipairs(run(2, { run = 'hooks' })) do
      has(got.inside, "[tensor.grad] the gradient of 'a.up.weight' is read before it is summed")
      has(got.outside, "[tensor.grad] the gradient of 'first.weight' is read before it is summed")
      near(got.inside_ratio, 4)
      near(got.outside_ratio, 4)
      assert.are.equal(2, got.names['up.weight'])
      assert.are.equal(2, got.names['last.bias'])
    end
  end)

  for _, plan in ipairs { { 2, 'dp', 1 }, { 2, 'tp', 2 }, { 2, 'pp', 2 } } do
    it('leave out dummies, take scale_fn: ' .. plan[2], function()
      for _, got in ipairs(run(plan[1], { run = 'dummies', policy = plan[2], plan = plan[3] })) do
        near(got.all, got.want_all)
        near(got.scaled, 1024 * got.want_all)
        near(got.first, got.want_first)
        assert.are.equal(0, got.none)
        assert.are.equal('2 0 float64', got.outputs)
        assert.are.equal(2, got.inferred)
        if plan[2] == 'pp' then has(got.count, '1 samples; the schedule of the plan has 2') end
      end
    end)
  end

  it('are right where units meet new shapes at different times', function()
    for _, got in ipairs(run(2, { run = 'shapes' })) do assert.is_true(got.worst <= 1e-12) end
  end)

  it('ask units to keep step where weights rest in shards', function()
    for _, got in ipairs(run(2, { run = 'lockstep' })) do
      has(got.said, 'the ranks of group 0,1 disagree')
      has(got.said, 'rank 1 calls all_gather')
    end
  end)
end)

describe('inference', function()
  for _, case in ipairs { { 2, 'tp', 2 }, { 4, 'tp', 2 }, { 2, 'fsdp', 1 } } do
    it(('needs no backward: %d ranks, %s'):format(case[1], case[2]), function()
      local folder = runs.folder()
      finally(function() runs.remove(folder) end)
      for _, got in ipairs(run(case[1], { run = 'inference', policy = case[2], plan = case[3],
        folder = folder })) do
        assert.is_true(got.distance <= 1e-12)
        near(got.losses[1], got.loss)
        near(got.losses[2], got.loss)
        has(got.train, '[library.inference_only] End2End was made with')
      end
    end)
  end
end)

describe('programs written without loading them', function()
  it('run on the ranks they are for', function()
    local folder = runs.folder()
    finally(function() runs.remove(folder) end)
    models.end2end.parallel('tp', { plan_ngpus = 2, runtime_ngpus = 4 }, {
      gen_savedir = folder, load_module = false })
    local function texts()
      local list = {}
      for _, name in ipairs(base.list_folder(folder .. '/End2End')) do
        list[name] = base.file_read(folder .. '/End2End/' .. name)
      end
      return list
    end
    local before = texts()
    local plain = models.end2end.plain():materialize(3)
    local want = models.end2end.loss(plain, models.end2end.sample(T.generator(5))):item()
    for _, got in ipairs(run(4, { run = 'compiled', folder = folder })) do
      near(got.trained, want)
      near(got.inferred, want)
    end
    assert.are.same(before, texts())
    assert.is_truthy(before['gencode3.eval.lua'])
  end)
end)
