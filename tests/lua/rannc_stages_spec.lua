--- The stage search of the rannc policy, held against vectors that an independent script computed
--- from the formulas of RaNNC.
local stages = require 'nnscaler.policies.rannc_stages'

local function problem(changes)
  local p = { limit = 38255689728, opt_param_factor = 2, min_pipeline = 1, max_pipeline = 32,
    min_pipeline_bs = 1, partition_num = 0, dp_search_all = false, limit_dev_num_pot = true,
    limit_dev_num_more_than_bs = true }
  for key, value in pairs(changes) do p[key] = value end
  return p
end

-- Linear layers of width `hidden`, some in each block; forward takes n(fixed + factor·samples).
local function layers(counts, hidden, fixed, factor, changes)
  local each = 4 * (hidden * hidden + hidden)
  local function n(from, to)
    local sum = 0
    for i = from, to do sum = sum + counts[i] end
    return sum
  end
  local function row(_, _, samples) return samples * hidden * 4 end
  local p = problem(changes)
  p.blocks, p.input, p.output = #counts, row, row
  p.parameters = function(from, to) return n(from, to) * each end
  p.profile = function(from, to, samples, micro)
    local f = n(from, to) * (fixed + factor * samples)
    return f, (micro > 1 and 3 or 2) * f,
      3 * n(from, to) * each + 2 * n(from, to) * samples * hidden * 4
  end
  return p
end

local function estimates(kept)
  local list = {}
  for i, found in ipairs(kept) do list[i] = { #found.stages, found.micro, found.estimate } end
  return list
end

describe('stages of rannc', function()
  local blocks = { 9, 9, 10, 10, 9, 10, 11, 11, 10, 11 }
  local two = { { 2, 1, 678251 }, { 2, 2, 712279 }, { 2, 4, 730487 }, { 2, 8, 803179 },
    { 2, 16, 966735 }, { 2, 32, 1302847 } }

  it('cuts a hundred layers on one host into two stages of four replicas', function()
    local kept, best = stages.search(layers(blocks, 5000, 100, 4,
      { batch = 512, devices = 8, devices_per_node = 8 }))
    assert.same(two, estimates(kept))
    assert.equal(1, best.micro)
    assert.same({ { from = 1, to = 5, replicas = 4 }, { from = 6, to = 10, replicas = 4 } },
      best.stages)
  end)

  it("says the tutorial's digits of its stages of 47 and 53 layers", function()
    local p = layers(blocks, 5000, 100, 4, { batch = 512, devices = 8, devices_per_node = 8 })
    local told = {}
    for i, range in ipairs { { 1, 5 }, { 6, 10 } } do
      local weights, samples = p.parameters(range[1], range[2]), 512 / 4
      local enter, leave = p.input(range[1], range[2], samples), p.output(range[1], range[2],
        samples)
      told[i] = { weights, stages.all_reduce(weights), p.opt_param_factor * weights, enter, leave,
        2 * enter + leave }
    end
    assert.same({ { 4700940000, 437809, 9401880000, 2560000, 2560000, 7680000 },
      { 5301060000, 493699, 10602120000, 2560000, 2560000, 7680000 } }, told)
  end)

  it('runs a copy on each of two hosts', function()
    local kept, best = stages.search(layers(blocks, 5000, 100, 4,
      { batch = 1024, devices = 16, devices_per_node = 8 }))
    assert.same(two, estimates(kept))
    assert.equal(2, best.copies)
    assert.same({ { from = 1, to = 5, replicas = 8 }, { from = 6, to = 10, replicas = 8 } },
      best.stages)
  end)

  it('keeps a small model whole', function()
    local kept, best = stages.search(layers({ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 512, 100, 1,
      { batch = 128, devices = 2, devices_per_node = 2 }))
    assert.same({ { 1, 1, 5922 }, { 1, 2, 11562 }, { 1, 4, 19554 }, { 1, 8, 35538 },
      { 1, 16, 67538 }, { 1, 32, 131538 } }, estimates(kept))
    assert.same({ { from = 1, to = 10, replicas = 2 } }, best.stages)
  end)

  it('finds nothing where no stage fits', function()
    local kept, best = stages.search(layers({ 1, 1 }, 512, 100, 1,
      { batch = 8, devices = 2, devices_per_node = 2, limit = 1000 }))
    assert.same({}, kept)
    assert.is_nil(best)
  end)

  it('gives devices to stages in turns, or in runs', function()
    assert.same({ { 0, 2, 4, 6 }, { 1, 3, 5, 7 } }, stages.allocate({ 4, 4 }, true))
    assert.same({ { 0, 1, 4, 5 }, { 2, 6 }, { 3, 7 } }, stages.allocate({ 4, 2, 2 }, true))
    assert.same({ { 4, 5 }, { 0, 1, 2, 3 } }, stages.allocate({ 2, 4 }, false))
  end)

  it('counts messages and sums in whole microseconds', function()
    assert.equal(119, stages.message(2560000))
    assert.equal(978, stages.all_reduce(10506240))
  end)
end)
