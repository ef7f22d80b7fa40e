--- Models of text whose sizes fit no number of ranks train as on one device: 8 query heads with 2
--- and 1 key heads, vocabularies of 257 and 50,257 in parts, texts of 7 and 33 tokens in parts,
--- with one target in all too; the loss of whole logits and in chunks.
local hidden = require 'tests.equivalence.plans.hidden'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local by_length = 'tests.equivalence.plans.length_policy'
local heads = { 'key heads 1', 'key heads 2' }
local odd = { 'vocabulary 257', 'vocabulary 257, tied', 'vocabulary 257, chunks',
  'vocabulary 257, tied, chunks' }
local large = { 'vocabulary 50257', 'vocabulary 50257, tied', 'vocabulary 50257, chunks',
  'vocabulary 50257, tied, chunks' }
local even = { 'vocabulary 256, tied, chunks', 'vocabulary 256, chunks' }
local each = { 'vocabulary 256, each' }
local short = { 'length 7', 'length 7, one target', 'length 7, chunks' }
local long = { 'length 33', 'length 33, one target', 'length 33, chunks' }

-- cuts: fewest operators that the plan has to cut.
local plans = {
  { of = heads, policy = 'tp', ranks = 4, cuts = 20 },
  { of = heads, policy = 'tp', ranks = 4, config = { seed = 2, uneven = true }, cuts = 20 },
  -- Each of 2 key heads goes to two devices, which share out its queries.
  { of = heads, policy = 'megatron', ranks = 4, cuts = 14 },
  { of = { 'key heads 2, dropout' }, policy = 'megatron', ranks = 4, cuts = 10 },
  { of = heads, policy = 'megatron', ranks = 4, config = { sequence_parallel = true }, cuts = 20 },
  { of = even, policy = 'megatron', ranks = 2, cuts = 16 },
  { of = even, policy = 'megatron', ranks = 4, cuts = 16 },
  { of = even, policy = 'pp', ranks = 2 },
  { of = even, policy = 'fsdp', ranks = 2, plan = 1 },
  { of = even, policy = 'tp', ranks = 4, config = { seed = 5 }, cuts = 15 },
  { of = each, policy = 'megatron', ranks = 4, cuts = 5 },
  { of = each, policy = 'tp', ranks = 2, cuts = 5 },
}
for _, ranks in ipairs { 2, 4 } do
  for length, models in sorted_pairs { [7] = short, [33] = long, [257] = odd, [50257] = large } do
    plans[#plans + 1] = { of = models, policy = by_length, ranks = ranks,
      config = { length = length }, cuts = length > 33 and 2 or 30 }
  end
end

for _, plan in ipairs(plans) do
  describe(hidden.name(plan), function()
    local found
    setup(function() found = hidden.run('tests.equivalence.plans.language_models', plan) end)
    for i, model in ipairs(plan.of) do
      it(model, function() assert.equal('', hidden.problems(plan, found, i)) end)
    end
  end)
end
