--- ZeRO against one device: five steps with AdamW, clipping and dropout in float64, at every level
--- and with every layout; and what each rank keeps, against its closed form.
local cells = require 'tests.equivalence.zero.cells'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local sorted_keys = require('nnscaler.sorted').sorted_keys

-- Runs cells of equally many ranks; cell.results[r] is what rank r - 1 gave.
local function run(list)
  for r, results in ipairs(on_ranks(list[1].ranks, 'tests.equivalence.zero.rank', list)) do
    for i, result in ipairs(results) do
      list[i].results = list[i].results or {}
      list[i].results[r] = result
    end
  end
  return list
end

local function check(cell)
  local bits = {}
  for r, result in ipairs(cell.results) do
    for _, part in ipairs(sorted_keys(result.bits)) do
      bits[part] = bits[part] or result.bits[part]
      assert.equal(bits[part], result.bits[part], ('%s: %s on rank %d'):format(cell.name, part,
        r - 1))
    end
  end
  for r, result in ipairs(cell.results) do
    assert.equal(result.expected, result.sent)
    assert(#result.bad == 0, ('%s, rank %d: %s'):format(cell.name, r - 1,
      table.concat(result.bad, '; ', 1, math.min(5, #result.bad))))
  end
end

-- A cell of data parallelism, with fields of its own; what it gave.
local function one(fields)
  local cell = { name = 'a cell', policy = 'dp', plan = 1, ranks = 4, accumulation = 2,
    masked = true }
  for _, key in ipairs(sorted_keys(fields)) do cell[key] = fields[key] end
  return run({ cell })[1]
end

describe('ZeRO equals one device', function()
  it('with all pairs of level, layout, accumulation, recompute and masks', function()
    local list = cells.covering(150)
    assert.equal(150, #list)
    for _, cell in ipairs(run(list)) do check(cell) end
  end)

  it('with shards inside groups and sums across them', function()
    for _, level in ipairs(cells.levels) do
      local cell = one { zero = level.zero, scatter = level.scatter, groups = 2 }
      check(cell)
      assert.matches(level.zero == 0 and 'weights replicated in 2 groups' or 'in 2 groups',
        cell.results[1].plan)
    end
    check(one { zero = 2, groups = 2, policy = 'megatron', plan = 2, ranks = 8 })
  end)

  it('where ranks have other numbers of micro-batches', function()
    for _, zero in ipairs { 1, 2 } do
      check(one { zero = zero, count = 6 })
      check(one { zero = zero, count = 3, ranks = 3, scatter = true })
    end
  end)

  it('where a policy gives weights levels of their own', function()
    local cell = one { zero = 1, levels = { ['*c_fc*'] = 3, ['*wte*'] = 2, ['*ln*'] = 0 } }
    check(cell)
    assert.matches('optimizer state sharded, .*transformer.h.0.c_fc.weight zero 3',
      (cell.results[1].plan:gsub('mlp%.', '')))
  end)

  it('under an optimizer that needs whole matrices, each of which stays with one rank', function()
    for _, fields in ipairs { { zero = 1 }, { zero = 1, scatter = true }, { zero = 2 } } do
      fields.muon = true
      local cell = one(fields)
      check(cell)
      local slots = 0
      for _, result in ipairs(cell.results) do slots = slots + result.kept.slots end
      -- A momentum of each matrix that Muon updates, two of all other elements.
      assert.equal(2 * 1952 - 1152, slots)
    end
    check(one { zero = 1, muon = true, policy = 'pp', plan = 2 })
  end)

  it('with states on the host, to the last bit', function()
    for i, level in ipairs(cells.levels) do
      for _, layout in ipairs { cells.layouts[1], cells.layouts[i % 2 == 0 and 3 or 5] } do
        local want
        for _, offload in ipairs { 'none', 'optimizer', 'all' } do
          local cell = one { name = level.name .. ', offload ' .. offload, zero = level.zero,
            scatter = level.scatter, policy = layout.policy, plan = layout.plan, offload = offload,
            bucket = 0.004 }
          check(cell)
          for r, result in ipairs(cell.results) do
            assert.same(want and want[r].bits or result.bits, result.bits)
          end
          want = want or cell.results
        end
      end
    end
    check(one { zero = 1, muon = true, offload = 'all' })
    check(one { zero = 1, groups = 2, offload = 'all' })
  end)

  it('in sets of a few elements, and under schedules with backward apart', function()
    check(one { zero = 1, scatter = true, bucket = 0.002 })
    check(one { zero = 2, policy = 'pp', plan = 2, config = { pipeline_scheduler = 'zb_h1' },
      accumulation = 4 })
    check(one { zero = 1, scatter = true, policy = 'pp', plan = 2,
      config = { pipeline_scheduler = 'chimera' } })
  end)
end)

describe('ZeRO keeps on each of 4 ranks', function()
  -- The model has 1952 parameters; of each, one weight, one gradient and two moments.
  local whole, part = 1952, 1952 / 4
  local want = {
    { whole, whole, 2 * whole }, { whole, whole, 2 * part }, { whole, part, 2 * part },
    { whole, part, 2 * part }, { part, part, 2 * part },
  }
  for i, level in ipairs(cells.levels) do
    it(level.name, function()
      for _, result in ipairs(one({ zero = level.zero, scatter = level.scatter }).results) do
        local kept = result.kept
        for k, name in ipairs { 'weights', 'gradients', 'slots' } do
          assert.is_true(math.abs(kept[name] / want[i][k] - 1) <= 0.03, ('%s: %d of %d'):format(
            name, kept[name], want[i][k]))
        end
        assert.equal(level.zero == 1 or level.zero == 2, result.sent > 0)
        -- What is told before anything runs. Gradients that a sum scatters are whole until then.
        assert.equal(kept.weights, kept.predicted.weights)
        assert.equal(level.scatter and whole or kept.gradients, kept.predicted.gradients)
      end
    end)
  end
end)

describe('ZeRO is refused by name', function()
  local function refused(fields, message)
    local ok, why = pcall(one, fields)
    assert.is_false(ok)
    assert.matches(message, tostring(type(why) == 'table' and why.message or why))
  end
  it('where groups do not divide the scale units', function()
    refused({ zero = 1, groups = 3 }, '3 ZeRO groups of 4 scale units; expected a divisor')
  end)
  it('where ranks see micro-batches in other orders', function()
    refused({ zero = 2, policy = 'pp', plan = 2, config = { pipeline_scheduler = 'chimera' } },
      "zero is 2 under schedule 'chimera'")
  end)
  it('where fsdp is told another level', function()
    refused({ zero = 1, policy = 'fsdp' }, 'use_zero is 1; fsdp is dp with 3')
  end)
  it('where weights rest in parts that their optimizer needs whole', function()
    refused({ zero = 3, muon = true },
      "the rank holds a part of '[%w_.]+', and muon updates whole weights")
  end)
  it('where no weight has the name', function()
    refused({ zero = 1, levels = { ['no.such'] = 2 } }, "no weight matches 'no.such'")
    refused({ zero = 1, levels = { ['*'] = 4 } }, "'zero' is 4; expected an integer from 0 to 3")
  end)
end)
