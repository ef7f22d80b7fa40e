--- The plans of the matrix. Each: name, policy, plan = plan_ngpus, ranks, micro = micro-batches of
--- a step over all units, config = pas_config;
---   only      communication that may occur in the program (nil: any); {} none
---   form      closed form of the number of calls (calls.lua)
---   less      every rank holds fewer weights than the whole, of the models in `spread`
---   odd       also for the models of group 'odd'
---   of        only for these models, which have what it cuts
local M = {}

local exchanges = { 'send' }
local gathers = { 'all_gather', 'reduce_scatter' }
local blocks = { ['gpt tied'] = true, ['gpt untied'] = true, ['gpt dropout'] = true, llama = true }

M.plans = {
  { name = 'one device', policy = 'dp', plan = 1, ranks = 1, micro = 3, only = {}, form = 'none',
    odd = true },
  { name = 'dp 2', policy = 'dp', plan = 1, ranks = 2, micro = 3, only = {}, form = 'dp',
    odd = true },
  { name = 'dp 4', policy = 'dp', plan = 1, ranks = 4, micro = 6, only = {}, form = 'dp' },
  { name = 'fsdp 2', policy = 'fsdp', plan = 1, ranks = 2, micro = 3, less = true, odd = true,
    only = gathers, form = 'fsdp' },
  { name = 'fsdp 4', policy = 'fsdp', plan = 1, ranks = 4, micro = 6, less = true,
    only = gathers, form = 'fsdp' },
  { name = 'data 2', policy = 'data', plan = 2, ranks = 2, micro = 3, odd = true },
  { name = 'data 4', policy = 'data', plan = 4, ranks = 4, micro = 3 },
  { name = 'tp 2', policy = 'tp', plan = 2, ranks = 2, micro = 3, odd = true },
  { name = 'tp 2 (seed 2)', policy = 'tp', plan = 2, ranks = 2, micro = 3, config = { seed = 2 },
    odd = true },
  { name = 'tp 4', policy = 'tp', plan = 4, ranks = 4, micro = 3, config = { seed = 3 } },
  { name = 'tp 2 × dp 2', policy = 'tp', plan = 2, ranks = 4, micro = 3, config = { seed = 4 } },
  { name = 'tp 3, uneven', policy = 'tp', plan = 3, ranks = 3, micro = 3,
    config = { seed = 5, uneven = true }, odd = true },
  { name = 'tp 4, uneven', policy = 'tp', plan = 4, ranks = 4, micro = 3,
    config = { seed = 6, uneven = true } },
  { name = 'pp 2', policy = 'pp', plan = 2, ranks = 2, micro = 3, only = exchanges, form = 'pp',
    less = true, odd = true },
  { name = 'pp 4, gpipe', policy = 'pp', plan = 4, ranks = 4, micro = 3,
    config = { pipeline_scheduler = 'gpipe' }, only = exchanges, form = 'pp', less = true },
  { name = 'pp 2 × dp 2', policy = 'pp', plan = 2, ranks = 4, micro = 6, only = exchanges,
    less = true },
  { name = 'hybrid 2 × 2', policy = 'hybrid', plan = 4, ranks = 4, micro = 3,
    config = { pipeline_nstages = 2 }, less = true },
  { name = 'hybrid 2 × 2 × 2', policy = 'hybrid', plan = 4, ranks = 8, micro = 6,
    config = { pipeline_nstages = 2 }, less = true },
  { name = 'megatron 2', policy = 'megatron', plan = 2, ranks = 2, micro = 3, of = blocks,
    less = true },
  { name = 'megatron 4', policy = 'megatron', plan = 4, ranks = 4, micro = 3, of = blocks,
    less = true },
  { name = 'megatron 4, sequence parallel', policy = 'megatron', plan = 4, ranks = 4, micro = 3,
    config = { sequence_parallel = true }, of = blocks, less = true },
  { name = 'megatron 2, sequence parallel', policy = 'megatron', plan = 2, ranks = 2, micro = 3,
    config = { sequence_parallel = true }, of = blocks, less = true },
  { name = 'megatron 2 × dp 2', policy = 'megatron', plan = 2, ranks = 4, micro = 6, of = blocks,
    less = true },
  { name = 'megatron 2 × pp 2', policy = 'megatron', plan = 4, ranks = 4, micro = 3,
    config = { pipeline_nstages = 2 }, of = blocks, less = true },
  { name = 'megatron 2 × pp 2, sequence parallel', policy = 'megatron', plan = 4, ranks = 4,
    micro = 3, config = { pipeline_nstages = 2, sequence_parallel = true }, of = blocks,
    less = true },
}

--- What is refused: by model and plan, a pattern of the message.
local few = 'operators do not fill'
local one = { ['pp 2'] = few, ['pp 4, gpipe'] = few, ['pp 2 × dp 2'] = few,
  ['hybrid 2 × 2'] = few, ['hybrid 2 × 2 × 2'] = few }
M.refused = {
  ['no parameters'] = { ['pp 4, gpipe'] = few }, ['one operator'] = one,
  ['odd: one operator'] = one, ['odd: a parameter as the only operand'] = one,
  -- unit 1 would have to see what unit 0 has just written
  ['odd: a buffer that counts'] = { ['dp 2'] = 'depend on what mean held',
    ['fsdp 2'] = 'depend on what mean held' },
}

--- Models whose weights lie all along the model: where a plan has stages, no rank holds them all.
M.spread = { mlp = true, ['gpt tied'] = true, ['gpt untied'] = true, ['gpt dropout'] = true,
  llama = true, sigmoids = true }

return M
