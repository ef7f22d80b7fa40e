--- 40 random legal plans against one device (300 in tests/long). NNSCALER_SEED sets the first seed;
--- those of the default one, and one more, cut every operator in every way and have every pair of
--- communication and its derivative.
local plans = require 'tests.equivalence.plans.random_plans'

local first = tonumber(os.getenv 'NNSCALER_SEED') or 1

-- A value that is summed for uses that each take a part of the work: about one plan in a hundred.
local RARE = 267
local seeds = {}
for i = 1, 40 do seeds[i] = first + i - 1 end
if first == 1 then seeds[41] = RARE end

describe('random plans,', function()
  local cells
  setup(function()
    cells = plans.run(first, 40)
    if first == 1 then cells[41] = plans.run(RARE, 1)[1] end
  end)

  for i, seed in ipairs(seeds) do
    local cell = plans.cell(seed)
    it(('%s: %s on %d ranks'):format(cell.name, cell.model, cell.ranks), function()
      local report = plans.report(cells[i])
      assert(not report, report)
    end)
  end

  it('cover the ways to cut and to communicate', function()
    local c = plans.coverage(cells)
    print(c.text)
    assert.is_true(c.replicated < 0.3)
    for _, kind in ipairs { 'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send' } do
      assert.is_true((c.calls[kind] or 0) > 0, 'no ' .. kind)
    end
    if first ~= 1 then return end
    assert.same({}, c.missing)
    for _, pair in ipairs {
      'all_reduce / identity', 'identity / all_reduce', 'all_reduce / all_reduce',
      'all_gather / reduce_scatter', 'all_gather / split', 'reduce_scatter / all_gather',
      'split / all_gather', 'all_to_all / all_to_all',
    } do
      assert.is_true((c.pairs[pair] or 0) > 0, 'no ' .. pair)
    end
  end)
end)
