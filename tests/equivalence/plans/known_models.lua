--- Models in which other systems lost a factor or a sum without a word: labels that are smoothed,
--- scores that a learned number a head takes part in (attention sinks), a norm before heads. They
--- are models of the plan matrix, unlisted.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'

local kVocab, kWidth, kHeads, kTime = 16, 8, 4, 6

local function text(g)
  local ids = { dtype = 'int64', generator = g }
  local function draw() return T.randint(0, kVocab, { 2, kTime }, ids) end
  local s = { x = draw(), y = draw() }
  s.y:narrow(1, 1, 2):fill_(-100)
  return s
end

local Smoothed = nn.class 'Smoothed'
function Smoothed:init(reduction)
  self.table, self.norm = nn.Embedding(kVocab, kWidth), nn.LayerNorm(kWidth)
  self.fc, self.head = nn.Linear(kWidth, 12), nn.Linear(12, kVocab)
  self.reduction = reduction
end
function Smoothed:forward(s)
  local scores = self.head(self.fc(self.norm(self.table(s.x))):tanh())
  local loss = F.cross_entropy(scores:view { 2 * kTime, kVocab }, s.y:view { 2 * kTime },
    { label_smoothing = 0.1, reduction = self.reduction })
  return self.reduction == 'none' and loss:square():mean() or loss
end
for _, reduction in ipairs { 'mean', 'sum', 'none' } do
  models['smoothed labels, ' .. reduction] = { make = function() return Smoothed(reduction) end,
    sample = text }
end

-- A column of scores beside those of the keys, one learned number a head, that is not read.
local Sinks = nn.class 'Sinks'
function Sinks:init()
  self.table = nn.Embedding(kVocab, kWidth)
  self.q, self.k, self.v = nn.Linear(kWidth, kWidth), nn.Linear(kWidth, kWidth),
    nn.Linear(kWidth, kWidth)
  self.sink = nn.Parameter { shape = { kHeads }, init = nn.init.normal(0, 1) }
  self.out, self.head = nn.Linear(kWidth, kWidth), nn.Linear(kWidth, kVocab)
end
function Sinks:forward(s)
  local x = self.table(s.x)
  local function heads(y)
    return y:view { 2, kTime, kHeads, kWidth / kHeads }:transpose(1, 2)
  end
  local scores = heads(self.q(x)):matmul(heads(self.k(x)):transpose(2, 3)) * 0.7
  local sink = self.sink:view { 1, kHeads, 1, 1 }:expand { 2, kHeads, kTime, 1 }
  local weights = F.softmax(T.cat({ scores, sink }, 3), 3):narrow(3, 0, kTime)
  local y = weights:matmul(heads(self.v(x))):transpose(1, 2):reshape { 2, kTime, kWidth }
  return F.cross_entropy(self.head(x + self.out(y)):view { 2 * kTime, kVocab },
    s.y:view { 2 * kTime })
end
models.sinks = { make = function() return Sinks() end, sample = text }
