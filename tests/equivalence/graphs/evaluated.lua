--- Models whose evaluation runs other operators than their training: earlier, later, fewer, more;
--- results a sample; no loss. Each is { name, make() → model, sample(generator) }; float64.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'

local M = {}

local function randn(g, ...) return T.randn({ ... }, { generator = g, dtype = 'float64' }) end
local function sample(g) return { x = randn(g, 4, 4), y = randn(g, 4, 4) } end

-- Eight layers, so that every schedule has enough operators for its stages. `forward` gets the
-- sample and the layers.
local function model(name, forward, init)
  local Net = nn.class 'Net'
  function Net:init()
    self.l = nn.ModuleList()
    for _ = 1, 8 do self.l:append(nn.Linear(4, 4)) end
    if init then init(self) end
  end
  Net.forward = forward
  M[#M + 1] = { name = name, make = function() return Net():to 'float64' end, sample = sample }
end

local function through(self, x, first, last)
  for i = first, last do x = self.l[i](x):tanh() end
  return x
end

model('scales an early activation', function(self, s)
  local x = self.l[1](s.x)
  if not self.training then x = x * 0.5 end
  local loss = through(self, x, 2, 8):square():mean()
  if self.training then loss = loss * 0.3 end
  return loss
end)

model('scales a late activation', function(self, s)
  local x = self.l[1](s.x)
  if self.training then x = x * 0.5 end
  x = through(self, x, 2, 8)
  if not self.training then x = x * 2 end
  return F.mse_loss(x, s.y)
end)

model('drops only in training', function(self, s)
  local x = through(self, s.x, 1, 2)
  x = through(self, self.drop(x), 3, 8)
  return F.mse_loss(x, s.y)
end, function(self) self.drop = nn.Dropout(0.3) end)

model('measures more', function(self, s)
  local x = through(self, s.x, 1, 8)
  local loss = F.mse_loss(x, s.y)
  if self.training then return loss end
  return loss, { best = x:argmax(-1), error = (x - s.y):abs():mean(0), spread = x:amax(0) }
end)

model('gives results a sample', function(self, s)
  local x = through(self, s.x, 1, 8)
  local each = (x - s.y):square():mean(-1)
  if self.training then return each:mean() end
  return each:mean(), { each = each, early = self.l[1](s.x) }
end)

model('gives no loss', function(self, s)
  local x = through(self, s.x, 1, 8)
  if self.training then return F.mse_loss(x, s.y) end
  return { scores = x:softmax(-1), x = x }
end)

model('leaves early', function(self, s)
  local x = through(self, s.x, 1, self.training and 8 or 3)
  return F.mse_loss(x, s.y)
end)

model('runs its layers in another order', function(self, s)
  if self.training then return F.mse_loss(through(self, s.x, 1, 8), s.y) end
  local x = s.x
  for i = 8, 1, -1 do x = self.l[i](x):sigmoid() end
  return F.mse_loss(x, s.y)
end)

model('reads an early weight late', function(self, s)
  local x = through(self, s.x, 1, 8)
  if not self.training then x = F.linear(x, self.l[1].weight) + self.l[2].bias end
  return F.mse_loss(x, s.y)
end)

model('runs another head', function(self, s)
  local x = through(self, s.x, 1, 8)
  local head = self.training and self.first or self.second
  return F.mse_loss(head(x), s.y)
end, function(self) self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4) end)

model('feeds its output back', function(self, s)
  local x = through(self, s.x, 1, 8)
  if not self.training then x = through(self, x, 1, 8) end
  return F.mse_loss(x, s.y)
end)

model('averages two passes', function(self, s)
  local x = through(self, s.x, 1, 8)
  if not self.training then x = (x + through(self, s.x:flip { 1 }, 1, 8)) / 2 end
  return F.mse_loss(x, s.y)
end)

model('returns a weight', function(self, s)
  local loss = F.mse_loss(through(self, s.x, 1, 8), s.y)
  if self.training then return loss end
  return loss, { early = self.l[1].weight, late = self.l[8].bias }
end)

model('makes constants', function(self, s)
  local at
  if not self.training then at = T.arange(4, { dtype = 'float64' }) + 1 end
  local x = through(self, s.x, 1, 8)
  if at then x = x * at + s.x:new_ones { 4, 4 } end
  return F.mse_loss(x, s.y)
end)

model('normalizes by what it has seen', function(self, s)
  local x = through(self, s.x, 1, 4)
  x = self.norm(x:reshape { 4, 4, 1, 1 }):reshape { 4, 4 }
  return F.mse_loss(through(self, x, 5, 8), s.y)
end, function(self) self.norm = nn.BatchNorm2d(4) end)
M[#M].writes = true -- a buffer in every micro-batch

return M
