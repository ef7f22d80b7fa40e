-- The eager engine: weighting of micro-batches, gradients, refusals.
local T = require 'nnscaler.tensor'
local Engine = require 'nnscaler.runtime.eager'
local nn = require 'nnscaler.nn'
local message = require 'tests.lua.support.message'

-- loss = mean over the labels that count of (w·x − y)²; a part without a path to the loss; a
-- frozen part.
local Model = nn.class 'Model'
function Model:init()
  self.line = nn.Linear(3, 1, { bias = false })
  self.unused = nn.Linear(2, 2)
  self.frozen = nn.Linear(1, 1)
  self.frozen:requires_grad_(false)
end
function Model:forward(sample)
  local error = (self.line(sample.x):squeeze(-1) - sample.y) * sample.counts
  local n = sample.counts:sum()
  return error:square():sum() / n + 0 * self.frozen(error:sum():reshape { 1 }):sum(), { tokens = n }
end

local function sample_of(rows)
  local x, y, counts = {}, {}, {}
  for i, row in ipairs(rows) do
    x[i], y[i], counts[i] = { row[1], row[2], row[3] }, row[4], row[5]
  end
  local options = { dtype = 'float64' }
  return { x = T.tensor(x, options), y = T.tensor(y, options), counts = T.tensor(counts, options) }
end

local kRows = {
  { 1, 2, 3, 0.5, 1 }, { 0, -1, 2, 1.5, 0 }, { 2, 2, -1, -1, 1 }, { 0.5, 0.25, 4, 2, 1 },
  { -3, 1, 1, 0, 1 }, { 1, 1, 1, 1, 0 },
}

local function new_engine()
  local model = Model()
  model:to 'float64'
  return Engine.new(model, { seed = 5 }), model
end

-- Loss and gradient of all rows together, in Lua.
local function expected(w)
  local loss, g, n = 0, { 0, 0, 0 }, 0
  for _, row in ipairs(kRows) do
    if row[5] == 1 then
      local e = w[1] * row[1] + w[2] * row[2] + w[3] * row[3] - row[4]
      loss, n = loss + e * e, n + 1
      for i = 1, 3 do g[i] = g[i] + 2 * e * row[i] end
    end
  end
  return loss / n, g, n
end

local function near(a, b)
  assert.is_true(math.abs(a - b) <= 1e-13 * math.max(1, math.abs(a)), a .. ' expected, got ' .. b)
end

describe('the eager engine', function()
  it('weights micro-batches by their labels', function()
    local engine, model = new_engine()
    local rows = kRows
    local result = engine:train_step({ sample_of { rows[1], rows[2] },
      sample_of { rows[3], rows[4], rows[5] }, sample_of { rows[6] } }, { step = 0 })
    local loss, g, n = expected(model.line.weight:tolist()[1])
    assert.equal(n, result.weight)
    near(loss, result.loss)
    assert.equal(3, #result.losses)
    for i, value in ipairs(engine:grad('line.weight'):tolist()[1]) do near(g[i], value) end
  end)

  it('gives no gradient to what has no path to the loss, or is frozen', function()
    local engine = new_engine()
    engine:train_step({ sample_of(kRows) }, { step = 0 })
    assert.is_nil(engine:grad 'unused.weight')
    assert.is_nil(engine:grad 'frozen.weight')
    local wants = {}
    for _, p in ipairs(engine.parameters) do wants[p.name] = p.requires_grad end
    assert.same({ ['line.weight'] = true, ['unused.weight'] = true, ['unused.bias'] = true,
      ['frozen.weight'] = false, ['frozen.bias'] = false }, wants)
    engine:zero_grad()
    assert.is_nil(engine:grad 'line.weight')
  end)

  it('counts for nothing a step without labels', function()
    local engine = new_engine()
    local samples = { sample_of { kRows[2] }, sample_of { kRows[6] } }
    local result = engine:train_step(samples, { step = 0 })
    assert.equal(0, result.weight)
    assert.equal(0, result.loss)
  end)

  it('evaluates without gradients and in evaluation mode', function()
    local engine, model = new_engine()
    local loss, n = engine:eval_step(sample_of(kRows), { step = 0 })
    near(expected(model.line.weight:tolist()[1]), loss)
    assert.equal(4, n)
    assert.is_false(model.training)
    assert.is_nil(engine:grad 'line.weight')
  end)

  it('takes the arguments of forward from the job', function()
    local Pair = nn.class 'Pair'
    function Pair:init() self.w = nn.Parameter { shape = { 2 }, init = nn.init.ones() } end
    function Pair:forward(a, b) return (self.w * a - b):square():mean() end
    local engine = Engine.new(Pair(), {
      forward_args = function(sample) return sample.first, sample.second end,
    })
    local result = engine:train_step({ { first = T.ones { 2 }, second = T.zeros { 2 } } },
      { step = 0 })
    assert.equal(1, result.loss)
    assert.equal(2, result.weight)
  end)

  it('refuses what is not a loss', function()
    local function forward(f)
      local Bad = nn.class 'Bad'
      function Bad:init() self.w = nn.Parameter { shape = { 2 } } end
      Bad.forward = f
      return message(function()
        Engine.new(Bad(), {}):train_step({ T.ones { 2 } }, { step = 0 })
      end)
    end
    assert.matches('the loss has shape %[2%]; expected a scalar',
      forward(function(self, x) return self.w * x end))
    assert.matches("forward's first result is a number; expected the loss",
      forward(function() return 3 end))
    assert.matches('tokens = %-1; expected a number',
      forward(function(self, x) return (self.w * x):sum(), { tokens = -1 } end))
    assert.matches('the micro%-batch holds no tensor', message(function()
      local Any = nn.class 'Any'
      function Any:init() self.w = nn.Parameter { shape = { 2 } } end
      function Any:forward() return self.w:sum() end
      Engine.new(Any(), {}):train_step({ { a = 3 } }, { step = 0 })
    end))
  end)
end)
