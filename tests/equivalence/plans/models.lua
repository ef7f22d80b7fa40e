--- Models of the plan matrix: small, with random weights everywhere (norms and biases too), and
--- samples that differ from one micro-batch to the next.
local F = require 'nnscaler.functional'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local nn = require 'nnscaler.nn'

local M = {}

local function randint(generator, high, sizes)
  return T.randint(0, high, sizes, { generator = generator, dtype = 'int64' })
end

-- Labels of which some are ignored, in unequal counts; all of them in the third micro-batch.
local function labels(generator, high, sizes, k)
  local y = randint(generator, high, sizes)
  local drop = randint(generator, 4, sizes)
  if k == 3 then return T.full(sizes, -100, { dtype = 'int64' }) end
  return y:masked_fill(drop:eq(0), -100)
end

local Mlp = nn.class 'Mlp'
function Mlp:init()
  self.fc = nn.Linear(8, 16)
  self.norm = nn.LayerNorm(16)
  self.proj = nn.Linear(16, 4)
end
function Mlp:forward(sample)
  local h = self.norm(F.gelu(self.fc(sample.x)))
  local loss = F.mse_loss(self.proj(h), sample.y)
  return loss
end
M.mlp = {
  make = function() return Mlp {} end,
  sample = function(generator)
    return { x = T.randn({ 4, 8 }, { generator = generator, dtype = 'float64' }),
      y = T.randn({ 4, 4 }, { generator = generator, dtype = 'float64' }) }
  end,
}

-- Micro-batches of other shapes: scale units meet them at different times.
M.lengths = {
  lengths = true,
  make = function() return Mlp {} end,
  sample = function(generator, k)
    local rows = 4 + 4 * (k % 3)
    return { x = T.randn({ rows, 8 }, { generator = generator, dtype = 'float64' }),
      y = T.randn({ rows, 4 }, { generator = generator, dtype = 'float64' }) }
  end,
}

local Branches = nn.class 'Branches'
function Branches:init()
  self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
  self.shared = nn.Linear(8, 8, { bias = false })
end
function Branches:forward(sample)
  local x = self.shared(sample.x)
  local left, right = F.relu(self.a(x)), self.b(x):tanh()
  return self.shared(left * right + x):pow(2):sum() * 0.1
end
M.branches = {
  make = function() return Branches {} end,
  sample = function(generator)
    return { x = T.randn({ 4, 8 }, { generator = generator, dtype = 'float64' }) }
  end,
}

local Sigmoids = nn.class 'Sigmoids'
function Sigmoids:init()
  local list = {}
  for i = 1, 8 do list[i] = nn.Linear(8, 8) end
  self.layers = nn.ModuleList(list)
end
function Sigmoids:forward(sample)
  local x = sample.x
  for i = 1, 8 do x = self.layers[i](x):sigmoid() end
  return F.binary_cross_entropy(x, sample.y)
end
M.sigmoids = {
  make = function() return Sigmoids {} end,
  sample = function(generator)
    return { x = T.randn({ 4, 8 }, { generator = generator, dtype = 'float64' }),
      y = T.rand({ 4, 8 }, { generator = generator, dtype = 'float64' }) }
  end,
}

local function gpt(options)
  return {
    masked = 3,
    make = function()
      return GPT { vocab = 16, layers = 2, heads = 2, width = 8, block = 8, bias = true,
        dropout = options.dropout or 0 }
    end,
    sample = function(generator, k)
      return { x = randint(generator, 16, { 4, 8 }), y = labels(generator, 16, { 4, 8 }, k) }
    end,
  }
end
M.gpt = gpt {}
M.gpt_dropout = gpt { dropout = 0.1 }

M.llama = {
  masked = 3,
  make = function()
    return Llama { vocab = 16, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 12,
      block = 8 }
  end,
  sample = function(generator, k)
    return { x = randint(generator, 16, { 4, 8 }), y = labels(generator, 16, { 4, 8 }, k) }
  end,
}

-- Widths that no number of ranks here divides.
local Uneven = nn.class 'Uneven'
function Uneven:init()
  self.a, self.b, self.c = nn.Linear(7, 11), nn.Linear(11, 5), nn.Linear(5, 3)
end
function Uneven:forward(sample)
  return F.mse_loss(self.c(self.b(self.a(sample.x):tanh()):sigmoid()), sample.y)
end
M.uneven = {
  make = function() return Uneven {} end,
  sample = function(generator)
    return { x = T.randn({ 4, 7 }, { generator = generator, dtype = 'float64' }),
      y = T.randn({ 4, 3 }, { generator = generator, dtype = 'float64' }) }
  end,
}

-- Means of every kind: labels that weigh unequally and are ignored in unequal counts, smoothing,
-- probabilities, and a mean of a tensor.
local Losses = nn.class 'Losses'
function Losses:init()
  self.fc = nn.Linear(8, 12)
  self.weights = nn.Parameter { shape = { 12 } }
end
function Losses:forward(sample)
  local scores = self.fc(sample.x)
  local weighted = aten.cross_entropy_loss(scores, sample.labels, sample.weights, 1, -100)
  local smooth = aten.cross_entropy_loss(scores, sample.labels, nil, 1, -100, 0.1)
  local soft = aten.cross_entropy_loss(scores, sample.y)
  local p = scores:sigmoid()
  local regression = F.mse_loss(p, sample.y) + F.l1_loss(p, sample.y)
    + F.smooth_l1_loss(scores, sample.y) + F.binary_cross_entropy(p, sample.y)
  return weighted + smooth * 2 + soft + regression + (p * self.weights):mean() * 3
    + scores:pow(2):mean(-1):sum()
end
M.losses = {
  make = function() return Losses {} end,
  sample = function(generator, k)
    local y = randint(generator, 12, { 8 })
    -- The second half of one micro-batch holds no label that counts.
    if k == 2 then y:narrow(0, 4, 4):fill_(-100) else y:narrow(0, 1, 2):fill_(-100) end
    return { x = T.randn({ 8, 8 }, { generator = generator, dtype = 'float64' }), labels = y,
      weights = T.rand({ 12 }, { generator = generator, dtype = 'float64' }),
      y = T.rand({ 8, 12 }, { generator = generator, dtype = 'float64' }) }
  end,
}

-- Statistics of the batch, and buffers that change with every micro-batch.
local Cnn = nn.class 'Cnn'
function Cnn:init()
  self.conv = nn.Conv2d(2, 4, 3, { padding = 1, bias = false })
  self.norm = nn.BatchNorm2d(4)
  self.fc = nn.Linear(4, 3)
end
function Cnn:forward(sample)
  local h = F.relu(self.norm(self.conv(sample.x)))
  return F.cross_entropy(self.fc(h:mean { 2, 3 }), sample.y)
end
M.cnn = {
  make = function() return Cnn {} end,
  sample = function(generator)
    return { x = T.randn({ 4, 2, 4, 4 }, { generator = generator, dtype = 'float64' }),
      y = randint(generator, 3, { 4 }) }
  end,
}

--- Makes a model in float64 whose weights are all drawn at random.
---@param name string
---@return nnscaler.nn.Module
function M.new(name)
  local model = M[name].make()
  model:to 'float64'
  for _, entry in ipairs(model:named_parameters()) do
    entry.param.init = { kind = 'normal', mean = 0, std = 0.5 }
  end
  return model
end

return M
