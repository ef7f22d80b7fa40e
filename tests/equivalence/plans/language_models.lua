--- Models of text with sizes that fit no number of ranks: few key and value heads, odd vocabularies,
--- odd lengths, targets of which one counts. They are models of the plan matrix, unlisted.
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'

local function text(vocab, time, change)
  return function(g)
    local ids = { dtype = 'int64', generator = g }
    local function draw() return T.randint(0, vocab, { 2, time }, ids) end
    local s = { x = draw(), y = draw() }
    if change then change(s) end
    return s
  end
end

local function add(name, make, sample) models[name] = { make = make, sample = sample } end

for _, kv_heads in ipairs { 1, 2 } do
  add('key heads ' .. kv_heads, function()
    return Llama { vocab = 16, layers = 1, heads = 8, kv_heads = kv_heads, width = 16, hidden = 12,
      block = 8 }
  end, text(16, 8))
end

for _, vocab in ipairs { 257, 50257 } do
  for _, tied in ipairs { true, false } do
    add(('vocabulary %d%s'):format(vocab, tied and ', tied' or ''), function()
      return GPT { vocab = vocab, layers = 1, heads = 4, width = 8, block = 4, bias = true,
        tied = tied }
    end, text(vocab, 4))
  end
end

for _, time in ipairs { 7, 33 } do
  add('length ' .. time, function()
    return Llama { vocab = 16, layers = 1, heads = 4, kv_heads = 2, width = 8, hidden = 12,
      block = time }
  end, text(16, time))
  -- The one target that counts lies on the last rank of a split.
  add(('length %d, one target'):format(time), models['length ' .. time].make,
    text(16, time, function(s)
      local last = s.y[1][time - 1]:item()
      s.y:fill_(-100)
      s.y[1][time - 1] = last
    end))
end
