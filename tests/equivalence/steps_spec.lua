--- 20 steps in float64 with AdamW, clipping, dropout and accumulation: loss and norm before
--- clipping of every step under each policy on 2 and 4 ranks are those of eager=true at the same
--- global batch.
local on_ranks = require 'tests.equivalence.support.on_ranks'

local function train(case)
  return on_ranks(case.ranks or 1, 'tests.equivalence.steps_rank', case)
end

-- policy, ranks, plan_ngpus, pas_config, use_zero
local runs = {
  { 'dp', 1, 1 }, { 'dp', 2, 1 }, { 'dp', 4, 1 }, { 'fsdp', 2, 1 }, { 'fsdp', 4, 1 },
  { 'tp', 2, 2 }, { 'tp', 4, 4, { seed = 3 } }, { 'tp', 4, 2, { seed = 2 } },
  { 'data', 2, 2 }, { 'pp', 2, 2 }, { 'pp', 4, 4, { pipeline_scheduler = 'gpipe' } },
  { 'pp', 4, 2 }, { 'hybrid', 4, 4 }, { 'dp', 4, 1, nil, 1 }, { 'dp', 4, 1, nil, 2 },
}

describe('20 steps equal one device,', function()
  local want
  setup(function() want = train({ eager = true })[1] end)

  for _, r in ipairs(runs) do
    it(('%s on %d ranks, %d a plan, level %d'):format(r[1], r[2], r[3], r[5] or 0), function()
      for rank, got in ipairs(train { policy = r[1], ranks = r[2], plan = r[3], config = r[4],
        zero = r[5] }) do
        for _, key in ipairs { 'losses', 'gnorms' } do
          assert.equal(20, #got[key])
          for step, expected in ipairs(want[key]) do
            local off = math.abs(got[key][step] - expected) / expected
            assert.is_true(off <= 1e-10, ('rank %d, step %d: %s differ by %.3g'):format(rank - 1,
              step, key, off))
          end
        end
      end
    end)
  end
end)
