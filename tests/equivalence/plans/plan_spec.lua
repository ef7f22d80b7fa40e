--- Every plan against one device, in float64: loss, weight of the step, every gradient and the
--- initial weights, on rank threads. The matrix is data.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'

local models = { 'mlp', 'lengths', 'branches', 'sigmoids', 'uneven', 'gpt', 'gpt_dropout', 'llama',
  'losses', 'cnn' }

-- name, policy, plan_ngpus, ranks, micro-batches, pas_config
local plans = {
  { 'dp 2', 'dp', 1, 2, 3 },
  { 'dp 4', 'dp', 1, 4, 6 },
  { 'fsdp 2', 'fsdp', 1, 2, 3 },
  { 'fsdp 4', 'fsdp', 1, 4, 6 },
  { 'data 2', 'data', 2, 2, 3 },
  { 'data 4', 'data', 4, 4, 3 },
  { 'tp 2', 'tp', 2, 2, 3 },
  { 'tp 2 again', 'tp', 2, 2, 3, { seed = 2 } },
  { 'tp 4', 'tp', 4, 4, 3, { seed = 3 } },
  { 'tp 2 x dp 2', 'tp', 2, 4, 3, { seed = 4 } },
  { 'pp 2', 'pp', 2, 2, 3 },
  { 'pp 4, gpipe', 'pp', 4, 4, 3, { pipeline_scheduler = 'gpipe' } },
  { 'pp 2 x dp 2', 'pp', 2, 4, 6 },
  { 'hybrid 2 x 2', 'hybrid', 4, 4, 3, { pipeline_nstages = 2 } },
  { 'hybrid 2 x 2 x dp 2', 'hybrid', 4, 8, 6, { pipeline_nstages = 2 } },
}

-- Plans of models that have what they cut.
local special = {
  { 'megatron 2', 'megatron', 2, 2, 3 },
  { 'megatron 2, sequence parallel', 'megatron', 2, 2, 3, { sequence_parallel = true } },
  { 'megatron 2 x dp 2', 'megatron', 2, 4, 6 },
  { 'megatron 2 x pp 2', 'megatron', 4, 4, 3, { pipeline_nstages = 2 } },
  { 'megatron 2 x pp 2, sequence parallel', 'megatron', 4, 4, 3,
    { pipeline_nstages = 2, sequence_parallel = true } },
}
local cells = { llama = special, gpt = special }

describe('under a plan,', function()
  local function cell(model, plan)
    it(('%s, %s'):format(model, plan[1]), function()
      local results = comm.run_local(plan[4], 'tests.equivalence.plans.rank', base.json_encode {
        model = model, policy = plan[2], plan = plan[3], world = plan[4],
        micro_batches = plan[5], pas_config = plan[6] or {},
        -- Units in lockstep evaluate as many micro-batches each; here some have one less.
        evaluate = model == 'lengths' and plan[2] ~= 'fsdp',
      })
      for r, text in ipairs(results) do
        local result = base.json_decode(text)
        assert.is_true(result.worst <= 1e-11, ('rank %d: %s differs by %.3g\n%s'):format(r - 1,
          result.where, result.worst, result.plan))
        -- Weights in shards, or cut: no rank holds the whole.
        if plan[2] == 'fsdp' or plan[2] == 'megatron' then
          assert.is_true(result.own < result.whole)
        end
        -- What was counted where it was copied is what the program says.
        if result.buffers == 0 and not result.lengths then
          assert.equal(result.expected, result.sent)
        end
      end
    end)
  end
  for _, model in ipairs(models) do
    for _, plan in ipairs(plans) do cell(model, plan) end
    for _, plan in ipairs(cells[model] or {}) do cell(model, plan) end
  end
end)
