--- Every precision under plans on two ranks equals one device in the same precision: each loss,
--- norm, gradient and weight errs against float64 at most ten times as much.
local base = require 'nnscaler._C.base'
local cells = require 'tests.equivalence.precision.cells'
local comm = require 'nnscaler._C.comm'
local log = require 'nnscaler.log'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local list = {}
for _, precision in ipairs(cells.precisions) do
  for _, plan in ipairs(cells.plans) do
    list[#list + 1] = { precision = precision, name = plan.name, policy = plan.policy,
      plan = plan.plan }
  end
end

describe('a precision', function()
  local alone, ranks = {}, {}
  setup(function()
    log.set_level 'error'
    for _, precision in ipairs(cells.precisions) do alone[precision] = cells.alone(precision) end
    for r, text in ipairs(comm.run_local(2, 'tests.equivalence.precision.rank',
      base.json_encode(list))) do
      ranks[r] = base.json_decode(text)
    end
  end)
  teardown(function() log.set_level 'info' end)

  for i, cell in ipairs(list) do
    it(('%s under %s equals one device'):format(cell.precision, cell.name), function()
      local worst, count = 0, 0
      for r = 1, 2 do
        for what, row in sorted_pairs(ranks[r][i].rows) do
          local own = alone[cell.precision][what]
          local limit = cells.limit(cell.precision, own, what)
          assert(row.difference <= limit, ('rank %d, %s: %.3g; limit %.3g'):format(r - 1, what,
            row.difference, limit))
          count = count + 1
          if not row.zero then worst = math.max(worst, row.difference) end
        end
      end
      -- Casts in front of weights leave them where they rest; tp draws another plan.
      assert(cell.policy == 'tp' or ranks[1][(i - 1) % #cells.plans + 1].own == ranks[1][i].own)
      assert.is_true(count > 60)
      -- a precision that did nothing would be as exact as float32
      if cell.precision:find '16' then assert.is_true(worst > 1e-4) end
    end)
  end
end)
