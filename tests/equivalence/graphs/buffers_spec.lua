--- Buffers that every micro-batch writes, over scale units and in stages: as on one device, or
--- refused by name with a way that works.
local models = require 'tests.equivalence.graphs.buffers'
local on_ranks = require 'tests.equivalence.support.on_ranks'

local kMicro = 4

-- policy, plan_ngpus, ranks, pas_config
local function run(name, plan)
  local results = on_ranks(plan[3], 'tests.equivalence.graphs.rank', { {
    models = 'tests.equivalence.graphs.buffers', model = models[name], policy = plan[1],
    plan = plan[2], ranks = plan[3], micro = kMicro, config = plan[4] or {},
  } })
  for r, result in ipairs(results) do assert.same({}, result[1].bad, 'rank ' .. r - 1) end
end

local units = { { 'dp', 1, 2 }, { 'fsdp', 1, 4 }, { 'data', 2, 4 } }
local stages = { { 'pp', 2, 2 }, { 'pp', 2, 4 }, { 'hybrid', 4, 4 },
  { 'pp', 2, 2, { pipeline_scheduler = 'zb_h1' } },
  { 'pp', 2, 2, { pipeline_scheduler = '1f1b_interleaved' } } }
local refused = { ['the greatest'] = 'mean is written as no number · mean %+ what a micro%-batch '
  .. 'adds', ['read by the loss'] = 'results depend on what mean held' }

describe('a buffer written as', function()
  for _, model in ipairs(models) do
    local name = model.name
    for _, plan in ipairs(units) do
      if not refused[name] then
        it(('%s: dp_running_average, %s of %d ranks'):format(name, plan[1], plan[3]), function()
          run(name, plan)
        end)
      else
        it(('%s: refused by %s of %d ranks'):format(name, plan[1], plan[3]), function()
          local ok, err = pcall(run, name, plan)
          assert.is_false(ok)
          assert.matches(refused[name], tostring(err))
          assert.matches('pas_policy=data compute_config.plan_ngpus=' .. plan[3], tostring(err))
        end)
      end
    end
    it(name .. ': what the refusal hints at', function() run(name, { 'data', 4, 4 }) end)
    for _, plan in ipairs(stages) do
      local several = plan[3] > plan[2] and refused[name]
      if not several then
        it(('%s: pp_running_buffer, %s %s of %d ranks'):format(name, plan[1],
          (plan[4] or {}).pipeline_scheduler or '', plan[3]), function() run(name, plan) end)
      end
    end
  end
end)
