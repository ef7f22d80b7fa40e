--- The rannc policy: the runs of RaNNC's tutorial by its own formulas, the plan that the simulator
--- prefers, and what it refuses.
local T = require 'nnscaler.tensor'
local handle = require 'nnscaler.policies.handle'
local lower = require 'nnscaler._C.lower'
local nn = require 'nnscaler.nn'
local policies = require 'nnscaler.policies'
local rannc = require 'nnscaler.policies.rannc'
local trace = require 'nnscaler.trace'
local message = require 'tests.lua.support.message'

local Net = nn.Module.class 'Net'

function Net:init(hidden, layers)
  self.layers = nn.ModuleList {}
  for _ = 1, layers do self.layers:append(nn.Linear(hidden, hidden)) end
end

function Net:forward(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return x
end

local function graph_of(rows, hidden, layers)
  local x = T.zeros { rows, hidden }:requires_grad_()
  return (trace(Net(hidden, layers), { x }, { training = true, loss = false }))
end

local function cfg_of(n, config)
  return { plan_ngpus = n, runtime_ngpus = n, micro_batches = 1, device = 'cpu', embedded = true,
    pas_config = config }
end

local function find(graph, n, config)
  local cfg = cfg_of(n, config)
  return rannc.find(handle.new(graph, cfg), cfg)
end

describe('rannc', function()
  it('keeps the small run of the tutorial whole, on two replicas', function()
    local found = find(graph_of(128, 512, 10), 2, { rannc_costs = true })
    assert.equal(128, found.batch)
    assert.equal(1, #found.rows)
    local row = found.rows[1]
    assert.equal('MERGE_0_9', row.name)
    assert.equal(2, row.replicas)
    assert.same({ 0, 1 }, row.devices)
    assert.same({ 978, 131072, 131072, 10506240, 21012480, 393216 },
      { row.reduce, row.enter, row.leave, row.weights, row.state, row.buffers })
  end)

  it('cuts the large run of the tutorial into two stages of four replicas', function()
    local found = find(graph_of(512, 5000, 100), 8,
      { rannc_costs = true, hardware = 'a100-40x8', max_partition_num = 10 })
    assert.equal(38255689728, found.limit)
    assert.equal(2, #found.rows)
    local weights = 0
    for _, row in ipairs(found.rows) do
      weights = weights + row.weights
      assert.equal(4, row.replicas)
      assert.equal(0, row.weights % 100020000)
      assert.same({ 2560000, 2560000, 2 * row.weights, 7680000 },
        { row.enter, row.leave, row.state, row.buffers })
      assert.equal(math.floor(row.weights * 1e6 / (10 * 2 ^ 30)), row.reduce)
      assert.is_true(row.peak + row.state + row.buffers < found.limit)
    end
    assert.equal(10002000000, weights)
    assert.same({ 0, 2, 4, 6 }, found.rows[1].devices)
    assert.same({ 1, 3, 5, 7 }, found.rows[2].devices)
  end)

  it('finds the better plan of that run where its own formulas do not bind', function()
    local cfg = cfg_of(8, { hardware = 'a100-40x8', max_partition_num = 10 })
    cfg.optimizer = { type = 'sgd', args = { lr = 0.01 } }
    local graph = graph_of(512, 5000, 100)
    local found, seconds = rannc.find(handle.new(graph, cfg), cfg), {}
    assert.equal(0, found.rows[1].state) -- RaNNC counts two copies of each weight, SGD keeps none
    assert.equal(1, #found.rows)
    assert.equal(8, found.rows[1].replicas)
    for stages = 1, 2 do
      cfg.pas_config.partition_num = stages
      local plan = policies.run(graph, 'rannc', cfg)
      seconds[stages] = lower.simulate(graph, { device = 'cpu', plan = plan, embedded = true },
        { hardware = 'a100-40x8', micro_batches = 1, state = 0 })
      assert.is_true(seconds[stages].total < found.limit)
    end
    assert.is_true(seconds[1].seconds < seconds[2].seconds)
  end)

  it('takes what the simulator finds fastest, and says the same again', function()
    local texts = {}
    for i = 1, 2 do
      texts[i] = policies.run(graph_of(8, 16, 6), 'rannc', cfg_of(2, {})):text()
    end
    assert.equal(texts[1], texts[2])
  end)

  it('plans a model of fewer layers than devices, and one of one operator', function()
    for _, layers in ipairs { 1, 2 } do
      local found = find(graph_of(16, 8, layers), 4, { partition_num = 4, rannc_costs = true })
      assert.is_true(#found.rows <= layers)
    end
  end)

  it('says what is needed where nothing fits', function()
    local text = message(function()
      find(graph_of(8, 16, 6), 2, { mem_limit_gb = 1e-7 })
    end)
    assert.matches('no feasible allocation: 6 blocks on 2 device', text)
    assert.matches('weights alone take', text)
  end)

  it('refuses options that it dropped, with the nearest name', function()
    local text = message(function()
      policies.run(graph_of(8, 16, 2), 'rannc', cfg_of(2, { mem_margins = 0.1 }))
    end)
    assert.matches("did you mean 'pas_config.mem_margin'", text)
  end)
end)
