--- Models of texts that several devices share, for context_spec. They are models of the plan
--- matrix, unlisted.
local DeepSeek = require 'nnscaler.models.deepseek'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'

local function sample(time, change)
  return function(g)
    local ids = { dtype = 'int64', generator = g }
    local s = { x = T.randint(0, 16, { 2, time }, ids), y = T.randint(0, 16, { 2, time }, ids) }
    if change then change(s) end
    return s
  end
end

-- All but one target of one text do not count.
local function one_target(place)
  return function(s)
    local kept = s.y[1][place]:item()
    s.y:fill_(-100)
    s.y[1][place] = kept
  end
end

local function llama(time, chunk)
  return function()
    return Llama { vocab = 16, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 12,
      block = time, loss_chunk = chunk, experts = chunk and { count = 4, balance = 0.1 } }
  end
end

for _, time in ipairs { 7, 16, 33 } do
  local name = 'text of ' .. time
  models[name] = { make = llama(time), sample = sample(time) }
  models[name .. ', first target'] = { make = llama(time), sample = sample(time, one_target(0)) }
  models[name .. ', last target'] = { make = llama(time),
    sample = sample(time, one_target(time - 1)) }
end
models['text of 16, experts'] = { make = llama(16, 3), sample = sample(16) }
models['text of 16, gpt'] = {
  make = function()
    return GPT { vocab = 16, layers = 2, heads = 4, width = 8, block = 16, bias = true }
  end,
  sample = sample(16),
}
-- Keys and values of other widths than one kernel takes.
models['text of 16, deepseek'] = {
  make = function()
    return DeepSeek { vocab = 16, layers = 2, heads = 4, width = 8, hidden = 12, block = 16,
      head_dim = 4, rope_dim = 2, value_dim = 6, kv_rank = 6, expert_hidden = 8,
      experts = { count = 4 } }
  end,
  sample = sample(16),
}
