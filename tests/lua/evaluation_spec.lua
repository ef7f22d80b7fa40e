--- Evaluation over validation data that ranks do not share evenly: every micro-batch counts once,
--- so the loss is that of one device.
local on_ranks = require 'tests.equivalence.support.on_ranks'

local rank = 'tests.lua.support.evaluation_rank'

local function near(want, got, what)
  assert.equal(#want, #got, what)
  for i, loss in ipairs(want) do
    assert.is_true(math.abs(loss - got[i]) <= 1e-12 * math.max(1, math.abs(loss)),
      ('%s: %.17g expected, got %.17g'):format(what, loss, got[i]))
  end
end

describe('evaluation', function()
  -- Micro-batches of two samples; the last one may have one.
  for _, samples in ipairs { 2, 6, 10, 13 } do
    local micros = math.ceil(samples / 2)
    local want = on_ranks(1, rank, { eager = true, ranks = 1, samples = samples })[1]

    for _, case in ipairs {
      { policy = 'dp', ranks = 2, plan = 1 }, { policy = 'dp', ranks = 3, plan = 1 },
      { policy = 'fsdp', ranks = 2, plan = 1 }, { policy = 'fsdp', ranks = 3, plan = 1 },
      { policy = 'pp', ranks = 2, plan = 2 }, { policy = 'pp', ranks = 4, plan = 2 },
      { policy = 'tp', ranks = 4, plan = 2 },
    } do
      it(('of %d micro-batches under %s on %d ranks'):format(micros, case.policy, case.ranks),
        function()
          case.samples = samples
          local all = on_ranks(case.ranks, rank, case)
          local seen = 0
          for r, got in ipairs(all) do
            near(want.losses, got.losses, 'rank ' .. (r - 1))
            if (r - 1) % case.plan == 0 then seen = seen + got.seen end
          end
          assert.equal(want.seen, seen) -- over the scale units
        end)
    end
  end
end)

describe('a step', function()
  it('ends when its messages were handed over', function()
    for _, schedule in ipairs { '1f1b', 'gpipe' } do
      local all = on_ranks(2, rank, { policy = 'pp', ranks = 2, plan = 2, samples = 6,
        config = { pipeline_scheduler = schedule } })
      for r, got in ipairs(all) do
        -- The first stage sends activations in training and evaluation, the last one gradients.
        assert.is_true(got.sent >= 12, ('rank %d sent %d messages'):format(r - 1, got.sent))
        assert.equal(0, got.late)
      end
    end
  end)
end)
