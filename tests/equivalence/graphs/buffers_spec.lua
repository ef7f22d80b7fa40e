--- Buffers that every micro-batch writes, over scale units and in stages: as on one device, or
--- refused by name with a way that works.
local models = require 'tests.equivalence.graphs.buffers'
local on_ranks = require 'tests.equivalence.support.on_ranks'

local kMicro = 4

-- Runs models under a plan: policy, plan_ngpus, ranks, pas_config.
local function run(names, plan)
  local cells = {}
  for i, name in ipairs(names) do
    cells[i] = { models = 'tests.equivalence.graphs.buffers', model = models[name],
      policy = plan[1], plan = plan[2], ranks = plan[3], micro = kMicro, config = plan[4] or {} }
  end
  for r, results in ipairs(on_ranks(plan[3], 'tests.equivalence.graphs.rank', cells)) do
    for i, result in ipairs(results) do
      assert.same({}, result.bad, ('%s, rank %d'):format(names[i], r - 1))
    end
  end
end

local units = { { 'dp', 1, 2 }, { 'fsdp', 1, 4 }, { 'data', 2, 4 } }
local stages = { { 'pp', 2, 2 }, { 'hybrid', 4, 4 },
  { 'pp', 2, 2, { pipeline_scheduler = 'zb_h1' } },
  { 'pp', 2, 2, { pipeline_scheduler = '1f1b_interleaved' } } }
local refused = { ['the greatest'] = 'mean is written as no number · mean %+ what a micro%-batch '
  .. 'adds', ['read by the loss'] = 'results depend on what mean held' }

local all, known = {}, {}
for _, model in ipairs(models) do
  all[#all + 1] = model.name
  if not refused[model.name] then known[#known + 1] = model.name end
end

describe('buffers that micro-batches write', function()
  for _, plan in ipairs(units) do
    it(('dp_running_average: each known form under %s of %d ranks'):format(plan[1], plan[3]),
      function() run(known, plan) end)
  end
  it('pp_running_buffer: each known form in stages of two units', function()
    run(known, { 'pp', 2, 4 })
  end)
  for _, plan in ipairs(stages) do
    it(('pp_running_buffer: every form under %s %s'):format(plan[1],
      (plan[4] or {}).pipeline_scheduler or ''), function() run(all, plan) end)
  end
  it('every form: what refusals hint at', function() run(all, { 'data', 4, 4 }) end)

  for _, model in ipairs(models) do
    local why = refused[model.name]
    for _, plan in ipairs(why and units or {}) do
      it(('%s: refused by %s of %d ranks'):format(model.name, plan[1], plan[3]), function()
        local ok, err = pcall(run, { model.name }, plan)
        assert.is_false(ok)
        assert.matches(why, tostring(err))
        assert.matches('pas_policy=data compute_config.plan_ngpus=' .. plan[3], tostring(err))
      end)
    end
  end
end)
