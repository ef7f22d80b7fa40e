--- Models of text with sizes that fit no number of ranks: few key and value heads, odd
--- vocabularies, odd lengths, targets of which one counts. They are models of the plan matrix,
--- unlisted.
local F = require 'nnscaler.functional'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'

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

-- Draws are those of the whole weights of attention, whichever device makes them.
local Dropped = nn.class 'Dropped'
function Dropped:init()
  self.table = nn.Embedding(16, 16)
  self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 4)
  self.out = nn.Linear(16, 16)
end
function Dropped:forward(s)
  local x = self.table(s.x)
  local function heads(y, count) return y:view { 2, 8, count, 2 }:transpose(1, 2) end
  local y = aten.scaled_dot_product_attention(heads(self.q(x), 8), heads(self.k(x), 2),
    heads(self.v(x), 2), { is_causal = true, enable_gqa = true, dropout_p = 0.3 })
  return F.cross_entropy(self.out(y:transpose(1, 2):reshape { 2, 8, 16 }):view { 16, 16 },
    s.y:view { 16 })
end
add('key heads 2, dropout', function() return Dropped() end, text(16, 8))

-- The loss of whole logits, and in chunks of 3 of 8 tokens, of which some do not count.
local function holes(s) s.y:narrow(1, 1, 2):fill_(-100) end
for _, vocab in ipairs { 256, 257, 50257 } do
  for _, tied in ipairs { true, false } do
    for _, chunk in ipairs { 0, 3 } do
      add(('vocabulary %d%s%s'):format(vocab, tied and ', tied' or '',
        chunk > 0 and ', chunks' or ''), function()
        return GPT { vocab = vocab, layers = 1, heads = 4, width = 8, block = 4, bias = true,
          tied = tied, loss_chunk = chunk > 0 and chunk or nil }
      end, text(vocab, 4, holes))
    end
  end
end

-- The loss of each token, weighted.
local Each = nn.class 'Each'
function Each:init()
  self.table, self.fc, self.proj = nn.Embedding(256, 8), nn.Linear(8, 12), nn.Linear(12, 8)
end
function Each:forward(s)
  local h = self.proj(self.fc(self.table(s.x)):tanh())
  local each = F.linear_cross_entropy(h, self.table.weight, s.y, { reduction = 'none', chunk = 3 })
  return (each * each):mean()
end
add('vocabulary 256, each', function() return Each() end, text(256, 4, holes))

for _, time in ipairs { 7, 33 } do
  local function llama(chunk)
    return function()
      return Llama { vocab = 16, layers = 1, heads = 4, kv_heads = 2, width = 8, hidden = 12,
        block = time, loss_chunk = chunk }
    end
  end
  add('length ' .. time, llama(), text(16, time))
  add(('length %d, chunks'):format(time), llama(5), text(16, time))
  -- The one target that counts lies on the last rank of a split.
  add(('length %d, one target'):format(time), models['length ' .. time].make,
    text(16, time, function(s)
      local last = s.y[1][time - 1]:item()
      s.y:fill_(-100)
      s.y[1][time - 1] = last
    end))
end
