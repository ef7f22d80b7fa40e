--- The full product of ZeRO levels, layouts, accumulation, recompute and masks on three models,
--- each against one device (tests/equivalence/zero).
local cells = require 'tests.equivalence.zero.cells'
local on_ranks = require 'tests.equivalence.support.on_ranks'

describe('ZeRO equals one device in all cells of', function()
  for _, model in ipairs { 'tied', 'untied', 'llama' } do
    it(model, function()
      local list = cells.all()
      for _, cell in ipairs(list) do cell.model = model end
      for r, results in ipairs(on_ranks(4, 'tests.equivalence.zero.rank', list)) do
        for i, result in ipairs(results) do
          assert(#result.bad == 0, ('%s, rank %d: %s'):format(list[i].name, r - 1,
            table.concat(result.bad, '; ')))
        end
      end
    end)
  end
end)
