--- Models of hand-written loops: the three ways to use parallel modules. Each has `plain()`, which
--- nothing makes parallel, and `parallel(policy, config)`.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'

local M = {}

local function randn(sizes, generator)
  return T.randn(sizes, { generator = generator, dtype = 'float64' })
end

-- What parallelize gets beside the plan.
local function options(more)
  local out = { gen_savedir = '', module_dtype = 'float64' }
  for _, key in ipairs { 'gen_savedir', 'reuse', 'load_module', 'module_fn' } do
    if more and more[key] ~= nil then out[key] = more[key] end
  end
  return out
end

-- Random weights everywhere, in float64.
local function randomise(model)
  model:to 'float64'
  for _, entry in ipairs(model:named_parameters()) do
    entry.param.init = { kind = 'normal', mean = 0, std = 0.4 }
  end
  return model
end

-- 1: the whole module is parallel.
local Whole = nn.class 'Whole'
function Whole:init()
  self.embed = nn.Embedding(8, 8)
  self.fc = nn.Linear(8, 16)
  self.drop = nn.Dropout(0.2)
  self.proj = nn.Linear(16, 4)
  self.unused = nn.Linear(2, 2)
end
function Whole:forward(batch)
  local h = self.embed(batch.ids):mean(1) + batch.x
  h = self.drop(F.gelu(self.fc(h)))
  return self.proj(h), { h = h, best = h:argmax(1) }
end
M.whole = {
  plain = function() return randomise(Whole()) end,
  sample = function(generator)
    return { ids = T.randint(0, 8, { 4, 3 }, { generator = generator, dtype = 'int64' }),
      x = randn({ 4, 8 }, generator), y = randn({ 4, 4 }, generator) }
  end,
  loss = function(model, sample)
    local out, more = model { ids = sample.ids, x = sample.x }
    return F.mse_loss(out, sample.y) + more.h:pow(2):mean()
  end,
}
M.whole.parallel = function(policy, config)
  local sample = M.whole.sample(T.generator(1))
  return nnscaler.parallelize(M.whole.plain(), { batch = { ids = sample.ids, x = sample.x } },
    policy, config, options())
end

-- 2: two parallel modules in a model with weights of its own; one of them is called twice.
local Block = nn.class 'Block'
function Block:init(width)
  self.norm = nn.LayerNorm(width)
  self.up = nn.Linear(width, 2 * width)
  self.drop = nn.Dropout(0.2)
  self.down = nn.Linear(2 * width, width)
end
function Block:forward(x)
  return x + self.down(self.drop(F.relu(self.up(self.norm(x)))))
end

local Parts = nn.class 'Parts'
function Parts:init(make)
  self.first = nn.Linear(6, 8)
  self.a = make()
  self.drop = nn.Dropout(0.2)
  self.b = make()
  self.last = nn.Linear(8, 4)
  self.unused = nn.Linear(2, 2)
end
function Parts:forward(sample)
  local h = self.a(self.first(sample.x))
  h = self.b(self.drop(h)) + h
  return F.mse_loss(self.last(self.a(h)), sample.y)
end
local function block() return Block(8) end
M.parts = {
  plain = function() return randomise(Parts(block)) end,
  parallel = function(policy, config)
    local dummy = T.zeros({ 4, 8 }, { dtype = 'float64' }):requires_grad_()
    local Class = nnscaler.parallelize(Block, { x = dummy }, policy, config, options {
      module_fn = function() return randomise(Block(8)) end,
    })
    local model = Parts(function() return Class() end)
    model:to 'float64'
    for _, name in ipairs { 'first', 'last', 'unused' } do randomise(model[name]) end
    return model
  end,
  sample = function(generator)
    return { x = randn({ 4, 6 }, generator), y = randn({ 4, 4 }, generator) }
  end,
  loss = function(model, sample) return model(sample) end,
}

-- Running statistics of all micro-batches, inside of a parallel module.
local Image = nn.class 'Image'
function Image:init()
  self.conv, self.norm = nn.Conv2d(1, 4, 2, { bias = false }), nn.BatchNorm2d(4)
  self:register_buffer('ramp', function() return T.arange(1, 5, { dtype = 'float32' }) end,
    { persistent = false })
end
function Image:forward(x)
  return F.relu(self.norm(self.conv(x))):mean({ 2, 3 }) + self.ramp
end
local Statistics = nn.class 'Statistics'
function Statistics:init(inner) self.inner, self.last = inner, nn.Linear(4, 2) end
function Statistics:forward(sample)
  return F.mse_loss(self.last(self.inner(sample.x)), sample.y)
end
M.statistics = {
  plain = function() return randomise(Statistics(Image())) end,
  parallel = function(policy, config)
    local dummy = T.zeros({ 4, 1, 3, 3 }, { dtype = 'float64' })
    local model = Statistics(nnscaler.parallelize(randomise(Image()), { x = dummy }, policy, config,
      options()))
    randomise(model.last)
    return model
  end,
  sample = function(generator)
    return { x = randn({ 4, 1, 3, 3 }, generator), y = randn({ 4, 2 }, generator) }
  end,
  loss = function(model, sample) return model(sample) end,
}

-- 3: an end-to-end module.
local End2End = nn.class 'End2End'
function End2End:init()
  local list = {}
  for i = 1, 8 do list[i] = nn.Linear(8, 8, { bias = false }) end
  self.layers = nn.ModuleList(list)
end
function End2End:forward(data)
  local x = data.data
  for i = 1, 8 do x = self.layers[i](x) end
  x = x:sigmoid()
  return F.binary_cross_entropy(x, data.target), { mean = x:mean() }
end
M.end2end = {
  end2end = true,
  plain = function() return randomise(End2End()) end,
  parallel = function(policy, config, more)
    config.use_end2end = true
    return nnscaler.parallelize(M.end2end.plain(), { data = M.end2end.sample(T.generator(1)) },
      policy, config, options(more))
  end,
  sample = function(generator)
    return { data = randn({ 4, 8 }, generator),
      target = T.rand({ 4, 8 }, { generator = generator, dtype = 'float64' }) }
  end,
  loss = function(model, sample) return (model(sample)) end,
}

return M
