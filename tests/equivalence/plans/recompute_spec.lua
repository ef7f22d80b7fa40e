--- pas_config.recompute_modules and offload_modules under plans on several ranks: equal to one
--- device, and to the last bit what the same plan gives without them, dropout included.
local runner = require 'tests.equivalence.plans.runner'

local blocks = 'transformer.h.*'
local ways = {
  { 'recompute', { recompute_modules = blocks } }, { 'offload', { offload_modules = blocks } },
  { 'recompute', { recompute_modules = blocks, offload_modules = 'ROOT' } },
}

local cells = {
  { name = 'dp 2', policy = 'dp', plan = 1 }, { name = 'fsdp 2', policy = 'fsdp', plan = 1 },
  { name = 'tp 2', policy = 'tp', plan = 2 }, { name = 'pp 2', policy = 'pp', plan = 2 },
}

-- By cell: the plan as it is, then each way.
local runs = {}
for i, cell in ipairs(cells) do
  local function with(config)
    return setmetatable({ model = 'gpt dropout', dtype = 'float64', ranks = 2, micro = 3,
      bits = true, config = config }, { __index = cell })
  end
  runs[i] = { with {} }
  for _, way in ipairs(ways) do table.insert(runs[i], with(way[2])) end
end

describe('recompute and offload by module', function()
  setup(function()
    local all = {}
    for _, list in ipairs(runs) do
      for _, run in ipairs(list) do all[#all + 1] = run end
    end
    runner.run_all(all)
  end)

  for i, cell in ipairs(cells) do
    it(cell.name .. ' equals one device, and the plan without them bit for bit', function()
      for k, run in ipairs(runs[i]) do
        local problem = runner.problem(run)
        assert(not problem, problem)
        for r, result in ipairs(run.results) do
          assert.equal(runs[i][1].results[r].bits, result.bits)
          local word = k > 1 and ways[k - 1][1]
          assert.equal(word == 'recompute', result.plan:find('recompute 0', 1, true) ~= nil)
          assert.equal(k > 2, result.plan:find('offload', 1, true) ~= nil)
        end
      end
    end)
  end
end)
