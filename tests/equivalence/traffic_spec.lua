--- The payload that `local` ranks count at the copy is what the Program says and what closed forms
--- of the padded sizes say, to the byte; loading never holds a whole model; samples that differ
--- inside a scale unit are found.
local beside = require 'tests.equivalence.support.beside'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local ring = require 'tests.equivalence.support.ring'

local function run(ranks, case)
  return on_ranks(ranks, 'tests.equivalence.traffic_rank', case)
end

describe('payload', function()
  for _, n in ipairs { 2, 3, 4 } do
    it(('of collectives over %d ranks'):format(n), function()
      for r, sent in ipairs(run(n, { experiment = 'primitives' })) do
        for _, size in ipairs { 1, 7, 12 } do
          assert.equal(ring(n, r - 1, size * 3), sent['all_reduce ' .. size])
          local chunk = (n - 1) * math.ceil(size / n) * 3 * 8
          assert.equal(chunk, sent['reduce_scatter ' .. size])
          assert.equal(chunk, sent['all_gather ' .. size])
        end
      end
    end)
  end

  for _, case in ipairs {
    { model = 'gpt dropout', policy = 'dp', plan = 1, ranks = 3, micro = 1 },
    { model = 'gpt untied', policy = 'tp', plan = 2, ranks = 2, micro = 2 },
    { model = 'gpt untied', policy = 'tp', plan = 4, ranks = 4, micro = 2, config = { seed = 3 } },
    { model = 'llama', policy = 'tp', plan = 2, ranks = 4, micro = 2, config = { seed = 2 } },
    { model = 'gpt tied', policy = 'pp', plan = 2, ranks = 2, micro = 2 },
    { model = 'llama', policy = 'hybrid', plan = 4, ranks = 4, micro = 2,
      config = { pipeline_nstages = 2 } },
    { model = 'gpt tied', policy = 'fsdp', plan = 1, ranks = 3, micro = 2 },
    { model = 'blocks', policy = 'uneven', plan = 2, ranks = 2, micro = 2 },
    { model = 'mlp', policy = 'uneven', plan = 3, ranks = 3, micro = 2 },
  } do
    it(('of a step: %s, %s %d on %d ranks'):format(case.model, case.policy, case.plan, case.ranks),
      function()
        case.experiment = 'step'
        for r, result in ipairs(run(case.ranks, case)) do
          assert.equal(result.said + beside(case.ranks, r - 1, result.lockstep), result.counted,
            'rank ' .. r - 1)
        end
      end)
  end

  for _, n in ipairs { 2, 3, 4 } do
    it(('of column and row cuts over %d: two all-reduces a block'):format(n), function()
      for r, result in ipairs(run(n, { experiment = 'step', model = 'blocks', policy = 'megatron',
        plan = n, ranks = n, micro = 1 })) do
        local calls = {}
        for _, t in ipairs(result.calls) do
          assert.equal('all_reduce', t.op)
          assert.equal(t.calls * ring(n, r - 1, 3 * 5), t.bytes)
          calls[t.segment] = t.calls
        end
        -- The first block's input needs no gradient.
        assert.same({ forward = 3, backward = 2 }, calls)
        assert.equal(5 * ring(n, r - 1, 3 * 5), result.said)
      end
    end)

    it(('of weights in %d shards: two gathers and a scatter'):format(n), function()
      for r, result in ipairs(run(n, { experiment = 'step', model = 'blocks', policy = 'fsdp',
        plan = 1, ranks = n, micro = 1 })) do
        local want = 0
        for _, share in ipairs(result.shares) do
          local elements, cut = 1, nil
          for d, whole in ipairs(share.whole or share.shape) do
            if whole ~= share.shape[d] then cut = whole else elements = elements * whole end
          end
          -- Backward reads no bias, nor the first weight: the input needs no gradient.
          local again = share.name:find 'weight$' and share.name ~= 'layers.0.fc.weight'
          want = want + (cut and (again and 3 or 2) * (n - 1) * math.ceil(cut / n) * elements * 8
            or ring(n, r - 1, elements))
        end
        assert.equal(want, result.said)
      end
    end)
  end
end)

describe('loading', function()
  for _, case in ipairs { { 'rows', 4 }, { 'pp', 4 }, { 'fsdp', 1 } } do
    it('never holds a whole model on a rank: ' .. case[1], function()
      local whole = 12 * 512 * 512 * 4
      local results = run(4, { experiment = 'memory', policy = case[1], plan = case[2] })
      for _, result in ipairs(results) do
        assert.is_true(result.own <= whole / 4)
        -- All four together: the model once, and a part that is being drawn.
        assert.is_true(result.live <= 1.1 * whole, ('%d bytes live'):format(result.live))
        assert.is_true(result.peak <= 1.3 * whole, ('%d bytes at most'):format(result.peak))
      end
    end)
  end
end)

describe('a sample', function()
  it('that differs inside a scale unit is refused', function()
    assert.error_matches(function() run(4, { experiment = 'samples', other = 3, step = 0 }) end,
      'step 1: rank 3 has another micro%-batch 1 than rank 2')
    assert.error_matches(function() run(4, { experiment = 'samples', other = 1, step = 100 }) end,
      'step 101: rank 1 has another micro%-batch 1 than rank 0')
  end)
  it('is compared in the first steps and now and then', function()
    run(4, { experiment = 'samples', step = 0 })
    run(4, { experiment = 'samples', other = 3, step = 5 })
  end)
end)
