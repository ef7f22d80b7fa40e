--- Models whose forward is another graph for another sample: loops over lengths, optional
--- arguments, numbers, nested samples. Each is { name, make() → model, sample(generator, k),
--- kinds = different samples }; micro-batches 1, 2, … differ. float64.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'

local M = {}

local function randn(g, ...) return T.randn({ ... }, { generator = g, dtype = 'float64' }) end
local function integers(g, high, ...)
  return T.randint(0, high, { ... }, { generator = g, dtype = 'int64' })
end

local function model(name, kinds, init, forward, sample)
  local Net = nn.class 'Net'
  Net.init, Net.forward = init, forward
  M[#M + 1] = { name = name, kinds = kinds, sample = sample,
    make = function() return Net():to 'float64' end }
end

local function recurrent(self)
  self.e, self.i, self.h, self.o = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 4),
    nn.Linear(4, 2)
end

local function texts(g, k)
  return { ids = integers(g, 8, 2, 3 + k % 3), y = integers(g, 2, 2) }
end

model('loops over a text', 3, recurrent, function(self, s)
  local x = self.i(self.e(s.ids))
  local h = x:new_zeros { x.shape[1], 4 }
  for t = 0, x.shape[2] - 1 do h = (x:select(1, t) + self.h(h)):tanh() end
  return F.cross_entropy(self.o(h), s.y)
end, texts)

model('adds a loss a step', 3, recurrent, function(self, s)
  local h, loss = self.i(self.e(s.ids:select(1, 0))), nil
  for t = 1, s.ids.shape[2] - 1 do
    h = (self.e(s.ids:select(1, t)) + self.h(h)):tanh()
    local l = F.cross_entropy(self.o(h), s.y)
    loss = loss and loss + l or l
  end
  return loss / s.ids.shape[2]
end, texts)

local function layers(self)
  self.l = nn.ModuleList()
  for _ = 1, 4 do self.l:append(nn.Linear(4, 4)) end
end

model('is given a mask or none', 2, layers, function(self, s)
  local x = self.l[2](self.l[1](s.x):tanh())
  if s.mask then x = x:masked_fill(s.mask, 0) end
  return F.mse_loss(self.l[4](self.l[3](x):relu()), s.y)
end, function(g, k)
  return { x = randn(g, 4, 4), y = randn(g, 4, 4),
    mask = k % 2 == 0 and integers(g, 2, 4, 4):eq(1) or nil }
end)

model('takes a number', 2, layers, function(self, s)
  local x = self.l[2](self.l[1](s.x):tanh())
  if s.scale > 1 then x = x * s.scale end
  return F.mse_loss(self.l[4](self.l[3](x):tanh()), s.y)
end, function(g, k)
  return { x = randn(g, 4, 4), y = randn(g, 4, 4), scale = 1 + k % 2 / 2 }
end)

model('takes nested samples', 3, layers, function(self, s)
  local x = self.l[1](s.image.x)
  if s.text then x = x + self.l[2](s.text.x):tanh() end
  for _, more in ipairs(s.others or {}) do x = x * more.scale + more.x end
  return F.mse_loss(self.l[4](self.l[3](x):tanh()), s.y)
end, function(g, k)
  local function one(scale) return { x = randn(g, 4, 4), scale = scale } end
  return { image = one(), text = k % 3 ~= 1 and one() or nil, y = randn(g, 4, 4),
    others = k % 3 == 2 and { one(2), one(3) } or nil }
end)

model('runs as many layers as it is told', 2, layers, function(self, s)
  local x = s.x
  for i = 1, s.depth do x = self.l[i](x):tanh() end
  return F.mse_loss(x, s.y)
end, function(g, k)
  return { x = randn(g, 4, 4), y = randn(g, 4, 4), depth = k % 2 == 0 and 4 or 2 }
end)

model('chooses a branch', 2, function(self)
  self.first, self.a, self.b, self.last = nn.Linear(4, 4), nn.Linear(4, 4),
    nn.Sequential { nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4) }, nn.Linear(4, 4)
end, function(self, s)
  local x = self.first(s.x):tanh()
  x = s.kind == 'a' and self.a(x) or self.b(x):sigmoid()
  return F.mse_loss(self.last(x), s.y)
end, function(g, k)
  return { x = randn(g, 4, 4), y = randn(g, 4, 4), kind = k % 2 == 1 and 'a' or 'b' }
end)

model('joins a list', 3, layers, function(self, s)
  local parts = {}
  for i, x in ipairs(s.list) do parts[i] = self.l[1](x):tanh() end
  local x = #parts > 1 and T.cat(parts, 0) or parts[1]
  return self.l[4](self.l[3](self.l[2](x)):tanh()):square():mean()
end, function(g, k)
  local list = {}
  for i = 1, 1 + k % 3 do list[i] = randn(g, 2, 4) end
  return { list = list }
end)

return M
