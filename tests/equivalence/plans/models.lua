--- Models of the plan matrix: small, with random weights everywhere (norms and biases too), and
--- samples that differ from one micro-batch to the next. `group` says how much of the matrix a
--- model meets: 'main' all of it, 'odd' a few plans of each kind. `masked`: the micro-batch that
--- counts for nothing.
local F = require 'nnscaler.functional'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local nn = require 'nnscaler.nn'

local M = { list = {} }

local function randn(g, ...) return T.randn({ ... }, { generator = g, dtype = 'float64' }) end
local function rand(g, ...) return T.rand({ ... }, { generator = g, dtype = 'float64' }) end
local function integers(g, high, ...)
  return T.randint(0, high, { ... }, { generator = g, dtype = 'int64' })
end

-- Labels of which some are ignored, in unequal counts: none left in the second half of the batch of
-- micro-batch 2 (a shard without a token), none at all in micro-batch 3.
local function labels(g, high, batch, time, k)
  local y = integers(g, high, batch, time)
  local drop = integers(g, 4, batch, time)
  y = y:masked_fill(drop:eq(0), -100)
  if k == 2 then y:slice(0, batch / 2, batch):fill_(-100) end
  if k == 3 then y:fill_(-100) end
  return y
end

local function add(name, group, make, sample)
  M.list[#M.list + 1] = name
  M[name] = { group = group, make = make, sample = sample }
end

-- A model from the functions init(self) and forward(self, sample).
local function model(name, init, forward, sample)
  local Model = nn.class 'Model'
  Model.init, Model.forward = init, forward
  add(name, 'main', function() return Model {} end, sample)
end

local function language(name, make)
  add(name, 'main', make, function(g, k)
    return { x = integers(g, 16, 4, 8), y = labels(g, 16, 4, 8, k) }
  end)
  M[name].masked = 3
end

local function vectors(g) return { x = randn(g, 4, 8), y = randn(g, 4, 4) } end
local function rows(g) return { x = randn(g, 4, 8) } end

model('mlp', function(self)
  self.fc, self.norm, self.proj = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
end, function(self, s)
  local loss = F.mse_loss(self.proj(self.norm(F.gelu(self.fc(s.x)))), s.y)
  return loss
end, vectors)

-- Micro-batches of other shapes: scale units meet them at different times.
model('lengths', function(self) self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4) end,
  function(self, s)
    local loss = F.mse_loss(self.b(F.gelu(self.a(s.x))), s.y)
    return loss
  end, function(g, k)
    local count = 4 + 4 * (k % 3)
    return { x = randn(g, count, 8), y = randn(g, count, 4) }
  end)
M.lengths.varies = true

local function gpt(change)
  return function()
    local a = { vocab = 16, layers = 2, heads = 4, width = 8, block = 8, bias = true }
    for key, value in pairs(change) do a[key] = value end
    return GPT(a)
  end
end
language('gpt tied', gpt {})
language('gpt untied', gpt { tied = false })
language('gpt dropout', gpt { dropout = 0.1 })
language('llama', function()
  return Llama { vocab = 16, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 12,
    block = 8 }
end)

model('cnn', function(self)
  self.conv, self.bn = nn.Conv2d(2, 4, 3, { padding = 1 }), nn.BatchNorm2d(4)
  self.fc = nn.Linear(16, 4)
end, function(self, s)
  local h = F.max_pool2d(self.bn(self.conv(s.x)):relu(), { 2, 2 })
  return F.cross_entropy(self.fc(h:flatten(1)), s.y)
end, function(g) return { x = randn(g, 4, 2, 4, 4), y = integers(g, 4, 4) } end)

model('branch and join', function(self)
  self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
end, function(self, s)
  local x = self.a(s.x)
  local left, right = F.relu(self.b(x)), self.c(x):tanh()
  return (left * right + x):pow(2):mean()
end, rows)

model('shared weight', function(self)
  self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
  self.shared = nn.Linear(8, 8, { bias = false })
end, function(self, s)
  local x = self.shared(s.x)
  local left, right = F.relu(self.a(x)), self.b(x):tanh()
  return self.shared(left * right + x):pow(2):sum() * 0.1
end, rows)

model('integer input', function(self)
  self.table, self.fc = nn.Embedding(12, 8), nn.Linear(8, 4)
end, function(self, s)
  local bags = self.table(s.x):sum(1) + s.x:sum(1, true)
  return F.mse_loss(self.fc(bags):sigmoid(), s.x:narrow(1, 0, 4):to 'float64')
end, function(g) return { x = integers(g, 12, 4, 6) } end)

model('constant multiply', function(self) self.fc = nn.Linear(8, 8) end, function(self, s)
  local scale = T.arange(8, { dtype = 'float64' }) * 0.25
  return (self.fc(s.x) * scale * 3 / 2):tanh():mean()
end, rows)

model('one operator', function(self) self.w = nn.Parameter { shape = { 8 } } end,
  function(self) return self.w:sum() end, rows)

model('no parameters', function() end, function(_, s) return s.x:square():mean() end, rows)

model('integer outputs', function(self) self.fc = nn.Linear(8, 4) end, function(self, s)
  local scores = self.fc(s.x)
  local best = scores:argmax(-1)
  return F.cross_entropy(scores, s.y), { best = best, right = best:eq(s.y):sum() }
end, function(g) return { x = randn(g, 4, 8), y = integers(g, 4, 4) } end)

model('nested tables', function(self) self.fc = nn.Linear(8, 8) end, function(self, s)
  local y = self.fc(s.parts[1].x + s.parts[2].x * s.scale.by)
  return (y * s.scale.by):square():mean(), {
    tokens = s.count, first = { y:detach(), { best = y:argmax(-1) } }, above = y:gt(0), note = 'n',
  }
end, function(g, k)
  return { count = 7 + k, scale = { by = randn(g, 8) },
    parts = { { x = randn(g, 4, 8) }, { x = randn(g, 4, 8) } } }
end)

model('four consumers', function(self)
  self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, { bias = false })
end, function(self, s)
  local y = s.x + 1
  return (self.a(y) * self.b(y):sigmoid() + self.c(y):relu() - y):square():mean()
end, rows)

model('in place', function(self) self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8) end,
  function(self, s)
    local y = self.a(s.x)
    y:mul_(2):add_(s.x)
    local z = self.b(y:relu_())
    z:masked_fill_(s.x:gt(0.5), 0):sigmoid_()
    return (z * y):mean()
  end, rows)

model('writes through views', function(self) self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8) end,
  function(self, s)
    local y = self.a(s.x)
    local kept = y * 2
    y:slice(1, 0, 4):mul_(3)
    y[0] = kept[1]
    y:transpose(0, 1):select(0, 2):add_(1)
    y:t():slice(0, 5, 7):copy_(kept:slice(1, 0, 2):t())
    return (self.b(y):tanh() * kept):mean()
  end, rows)

model('two parts', function(self)
  self.left, self.right = nn.Sequential(), nn.Sequential()
  for _, part in ipairs { self.left, self.right } do
    part:append(nn.Linear(8, 8))
    part:append(nn.GELU())
    part:append(nn.Linear(8, 8))
  end
  self.scale = nn.Parameter { shape = { 8 } }
  self.bias = nn.Parameter { shape = { 1 } }
end, function(self, s)
  return ((self.left(s.x) + self.right(s.x * self.scale)) * self.scale + self.bias):square():mean()
end, rows)

model('sigmoids', function(self)
  self.layers = nn.ModuleList()
  for _ = 1, 8 do self.layers:append(nn.Linear(8, 8)) end
end, function(self, s)
  local x = s.x
  for i = 1, 8 do x = self.layers[i](x):sigmoid() end
  return F.binary_cross_entropy(x, s.y)
end, function(g) return { x = randn(g, 4, 8), y = rand(g, 4, 8) } end)

-- The mean over labels that count, split over the batch: shards see other counts of them.
model('ignored labels', function(self) self.fc = nn.Linear(8, 6) end, function(self, s)
  local loss = F.cross_entropy(self.fc(s.x), s.y)
  return loss, { tokens = s.y:ne(-100):sum() }
end, function(g, k) return { x = randn(g, 4, 8), y = labels(g, 6, 4, 1, k):flatten() } end)
M['ignored labels'].masked = 3

-- Widths that no number of ranks here divides.
model('uneven', function(self)
  self.a, self.b, self.c = nn.Linear(7, 11), nn.Linear(11, 5), nn.Linear(5, 3)
end, function(self, s)
  return F.mse_loss(self.c(self.b(self.a(s.x):tanh()):sigmoid()), s.y)
end, function(g) return { x = randn(g, 4, 7), y = randn(g, 4, 3) } end)

-- Means of every kind: labels that weigh unequally and are ignored in unequal counts, smoothing,
-- probabilities, and a mean of a tensor.
model('losses', function(self)
  self.fc = nn.Linear(8, 12)
  self.weights = nn.Parameter { shape = { 12 } }
end, function(self, s)
  local scores = self.fc(s.x)
  local weighted = aten.cross_entropy_loss(scores, s.labels, s.weights, 1, -100)
  local smooth = aten.cross_entropy_loss(scores, s.labels, nil, 1, -100, 0.1)
  local soft = aten.cross_entropy_loss(scores, s.y)
  local p = scores:sigmoid()
  local regression = F.mse_loss(p, s.y) + F.l1_loss(p, s.y)
    + F.smooth_l1_loss(scores, s.y) + F.binary_cross_entropy(p, s.y)
  return weighted + smooth * 2 + soft + regression + (p * self.weights):mean() * 3
    + scores:pow(2):mean(-1):sum()
end, function(g, k)
  local y = integers(g, 12, 8)
  -- The second half of one micro-batch holds no label that counts.
  if k == 2 then y:narrow(0, 4, 4):fill_(-100) else y:narrow(0, 1, 2):fill_(-100) end
  return { x = randn(g, 8, 8), labels = y, weights = rand(g, 12), y = rand(g, 8, 12) }
end)

-- Statistics of the batch, buffers that change with every micro-batch, and a mean over an image.
model('statistics', function(self)
  self.conv = nn.Conv2d(2, 4, 3, { padding = 1, bias = false })
  self.norm, self.fc = nn.BatchNorm2d(4), nn.Linear(4, 3)
end, function(self, s)
  local h = F.relu(self.norm(self.conv(s.x)))
  return F.cross_entropy(self.fc(h:mean { 2, 3 }), s.y)
end, function(g) return { x = randn(g, 4, 2, 4, 4), y = integers(g, 3, 4) } end)

for _, odd in ipairs(require 'tests.lua.odd_models') do
  add('odd: ' .. odd.name, 'odd', odd.make, odd.sample)
end

--- Makes a model of a floating dtype whose weights are all drawn at random.
---@param name string
---@param dtype? string float64 by default
---@return nnscaler.nn.Module
function M.new(name, dtype)
  local made = M[name].make()
  made:to(dtype or 'float64')
  for _, entry in ipairs(made:named_parameters()) do
    entry.param.init = { kind = 'normal', mean = 0, std = 0.5 }
  end
  return made
end

return M
