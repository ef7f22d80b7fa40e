--- Each primitive of a policy through lowering, on rank threads in float64, against one device.
local cases = require 'tests.equivalence.primitives.cases'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local sorted_keys = require('nnscaler.sorted').sorted_keys

describe('the primitive', function()
  for _, name in ipairs(sorted_keys(cases)) do
    local case = cases[name]
    it(name, function()
      local results = on_ranks(case.world or case.plan, 'tests.equivalence.primitives.rank',
        { case = name })
      for r, result in ipairs(results) do
        assert.is_true(#result.bad == 0, ('rank %d:\n  %s\n%s'):format(r - 1,
          table.concat(result.bad, '\n  '), result.plan))
        if case.cut then assert.is_true(result.cut >= case.cut, 'no weight is cut') end
      end
    end)
  end
end)
