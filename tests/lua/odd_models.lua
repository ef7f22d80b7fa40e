--- Models of odd forms, small enough to be run by every engine. Each is { name, make() → model,
--- sample(generator) → sample }; forward takes the sample as its one argument. float64 throughout.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'

local models = {}

-- A model from the functions init(self) and forward(self, sample).
local function odd(name, init, forward, sample)
  local Model = nn.class 'Odd'
  Model.init, Model.forward = init, forward
  models[#models + 1] = {
    name = name,
    make = function() return Model():to 'float64' end,
    sample = sample,
  }
end

local function randn(generator, ...)
  return T.randn({ ... }, { generator = generator, dtype = 'float64' })
end
local function integers(generator, high, ...)
  return T.randint(0, high, { ... }, { generator = generator })
end
local function nothing() end
local function batch(generator) return { x = randn(generator, 4, 3) } end

local function line(self) self.fc = nn.Linear(3, 3) end
local function weight(self)
  self.w = nn.Parameter { shape = { 3 }, init = nn.init.normal(0, 1) }
end

odd('branch and join', function(self)
  self.a, self.b = nn.Linear(3, 5), nn.Linear(3, 5)
end, function(self, s)
  local a, b = self.a(s.x):tanh(), self.b(s.x):sigmoid()
  return (a * b + a - b):pow(2):mean()
end, batch)

odd('one module called twice', line, function(self, s)
  return self.fc(self.fc(s.x):tanh()):square():mean()
end, batch)

odd('tied weights', function(self)
  self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3, { bias = false })
  self.outer.weight = self.inner.weight
end, function(self, s) return self.outer(self.inner(s.x):relu()):square():mean() end, batch)

odd('nested sample, nested results', line, function(self, s)
  local y = self.fc(s.parts[1].x + s.parts[2].x)
  local loss = (y * s.scale.by):square():mean()
  return loss, {
    tokens = s.count, first = { y:detach(), { best = y:argmax(-1) } }, above = y:gt(0), note = 'n',
  }
end, function(g)
  return { count = 7, scale = { by = randn(g, 3) },
           parts = { { x = randn(g, 4, 3) }, { x = randn(g, 4, 3) } } }
end)

odd('tokens as a tensor, labels to leave out', function(self) self.fc = nn.Linear(3, 5) end,
  function(self, s)
    local loss = F.cross_entropy(self.fc(s.x), s.y)
    return loss, { tokens = s.y:ne(-100):sum() }
  end, function(g)
    local y = integers(g, 5, 4)
    y[2] = -100
    return { x = randn(g, 4, 3), y = y }
  end)

odd('no parameters', nothing, function(_, s) return s.x:square():mean() end, batch)

odd('one operator', nothing, function(_, s) return s.x:sum() end, batch)

odd('a parameter as the only operand', weight, function(self) return self.w:sum() end, batch)

odd('an input that is not used', line, function(self, s) return self.fc(s.x):sum() end,
  function(g) return { x = randn(g, 4, 3), y = randn(g, 2), z = { n = integers(g, 9, 4) } } end)

odd('inputs and parameters as results', weight, function(self, s)
  local loss = (s.x * self.w):sum()
  return loss, s.x, self.w, loss
end, batch)

odd('frozen and unused parameters, detach', function(self)
  self.fc, self.frozen, self.unused = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(2, 2)
  self.frozen:requires_grad_(false)
end, function(self, s)
  local y = self.frozen(self.fc(s.x))
  return (y * y:detach()):mean()
end, batch)

odd('a part without gradients', line, function(self, s)
  local y = self.fc(s.x)
  local scale = T.no_grad(function() return (y:abs():max()) end)
  return (y / scale):sum()
end, batch)

odd('writes to activations', line, function(self, s)
  local y = self.fc(s.x)
  local kept = y * 2
  y:slice(1, 0, 2):mul_(3)
  y[0] = kept[1]
  y:transpose(0, 1):select(0, 2):add_(1)
  local out = T.zeros({ 4, 3 }, { dtype = 'float64' })
  for i = 0, 3 do out[i] = y[3 - i] * (i + 1) end
  return (out * kept):mean()
end, batch)

odd('a buffer that counts', function(self)
  line(self)
  self:register_buffer('mean', { shape = { 3 }, dtype = 'float64' })
  self:register_buffer('calls', { shape = {}, dtype = 'int64' })
end, function(self, s)
  if self.training then
    self.mean:mul_(0.9):add_(s.x:mean(0), { alpha = 0.1 })
    self.calls:add_(1)
  end
  return self.fc(s.x - self.mean):square():mean()
end, batch)

odd('batch norm', function(self)
  self.conv, self.bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
end, function(self, s)
  return self.bn(self.conv(s.x)):relu():square():mean()
end, function(g) return { x = randn(g, 2, 2, 6, 6) } end)

odd('convolution, pooling, flattening', function(self)
  self.conv, self.fc = nn.Conv2d(2, 3, 3), nn.Linear(12, 4)
end, function(self, s)
  local y = F.max_pool2d(self.conv(s.x):relu(), { 2, 2 })
  return F.cross_entropy(self.fc(y:flatten(1)), s.y)
end, function(g) return { x = randn(g, 2, 2, 6, 6), y = integers(g, 4, 2) } end)

odd('gathers, scatters and masks', line, function(self, s)
  local y = self.fc(s.x)
  local picked = y:gather(1, s.i)
  local spread = y:new_zeros { 4, 3 }:scatter_add(1, s.i, picked * 2)
  local masked = spread:masked_fill(s.x:gt(0), 0.5)
  local cumulated = masked:cumsum(0)
  return T.where(s.x:lt(0.3), cumulated, y):sum() + y:index_select(0, s.rows):square():mean()
end, function(g)
  return { x = randn(g, 4, 3), i = integers(g, 3, 4, 2), rows = integers(g, 4, 5) }
end)

odd('index with lists and accumulation', line, function(self, s)
  local y = self.fc(s.x)
  local rows = T.tensor({ 3, 1, 1 }, { dtype = 'int64' })
  local out = y:index_put({ rows }, y:slice(0, 0, 3), true)
  return out:square():mean() + y[rows]:sum()
end, batch)

odd('largest, smallest, sorted', line, function(self, s)
  local y = self.fc(s.x)
  local values, where = y:max(1)
  local top, at = y:topk(2, 1)
  local sorted = y:sort(0, true)
  return values:sum() + (top * 2):sum() + sorted[0]:sum() - y:amin({ 0 }):sum(), { where, at }
end, batch)

odd('one tensor in several places', line, function(self, s)
  local y = self.fc(s.x)
  return (y * y + y):sum() + T.cat({ y, y, s.x }, 0):square():mean() + y:matmul(y:t()):mean()
end, batch)

odd('broadcasting and expansion', function(self)
  self.w = nn.Parameter { shape = { 3, 1 }, init = nn.init.normal(0, 1) }
  self.b = nn.Parameter { shape = {}, init = nn.init.normal(0, 1) }
end, function(self, s)
  local y = s.x:unsqueeze(1) * self.w + self.b
  return (y:expand { 2, 4, 3, 3 } * s.k):mean()
end, function(g) return { x = randn(g, 4, 3), k = randn(g, 2, 1, 1, 3) } end)

odd('recomputed regions', line, function(self, s)
  local y = nnscaler.recompute(function(x) return self.fc(x):tanh() end, s.x)
  y = nnscaler.recompute(self.fc, y)
  return y:square():mean()
end, batch)

odd('dropout, twice in one module', function(self)
  line(self)
  self.drop = nn.Dropout(0.5)
end, function(self, s)
  local y = self.drop(self.fc(s.x))
  local z = F.dropout(y, 0.3, self.training) + F.dropout(y, 0.3, self.training)
  return self.drop(z):square():mean()
end, batch)

odd('attention with and without dropout', function(self) self.fc = nn.Linear(4, 12) end,
  function(self, s)
    local q, k, v = unpack(self.fc(s.x):view { 2, 5, 3, 2, 2 }:permute { 2, 0, 3, 1, 4 }:unbind(0))
    local y = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
    local z = F.scaled_dot_product_attention(q, k, v, { dropout_p = self.training and 0.5 or 0 })
    return (y + z):square():mean()
  end, function(g) return { x = randn(g, 2, 5, 4) } end)

odd('tables made in the constructor', function(self)
  line(self)
  self:register_buffer('angles', function()
    return T.arange(4, { dtype = 'float64' }):unsqueeze(1) * T.arange(3, { dtype = 'float64' })
  end, { persistent = false })
end, function(self, s)
  local positions = T.arange(0, 4, { dtype = 'int64' })
  return (self.fc(s.x) * self.angles:cos() + self.angles[positions]:sin()):sum()
end, batch)

odd('constants from outside', (function()
  local scale = T.tensor({ 1, 2, 3 }, { dtype = 'float64' })
  return function(self)
    line(self)
    self.scale = function() return scale end
  end
end)(), function(self, s) return (self.fc(s.x) * self.scale()):sum() end, batch)

odd('control flow on sizes and mode', line, function(self, s)
  local y = s.x
  for _ = 1, s.x:size(0) - 1 do y = self.fc(y):tanh() end
  if not self.training then y = y * 0.5 end
  return y:square():mean()
end, batch)

odd('a normalised stack', function(self)
  self.layers = nn.Sequential()
  for _ = 1, 3 do
    self.layers:append(nn.Linear(3, 3))
    self.layers:append(nn.LayerNorm(3))
    self.layers:append(nn.GELU())
  end
  self.norm = nn.RMSNorm(3)
end, function(self, s) return F.softmax(self.norm(self.layers(s.x)), -1):square():sum() end, batch)

return models
