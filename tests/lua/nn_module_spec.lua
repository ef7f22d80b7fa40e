--- The module tree: names, order, ties, state, calls, and what wrong use says.
local GPT = require 'nnscaler.models.gpt'
local MLP = require 'nnscaler.models.mlp'
local T = require 'nnscaler.tensor'
local door = require 'nnscaler._C.tensor'
local message = require 'tests.lua.support.message'
local nn = require 'nnscaler.nn'

local function names(list)
  local result = {}
  for i, entry in ipairs(list) do result[i] = entry.name or entry.alias end
  return result
end

local Pair = nn.class 'Pair'
function Pair:init()
  self.zeta = nn.Linear(2, 3)
  self.scale = nn.Parameter { shape = { 3 } }
  self.alpha = nn.Linear(3, 2, { bias = false })
  self:register_buffer('table', T.ones { 2 })
  self:register_buffer('scratch', function() return T.arange(3) end, { persistent = false })
end
function Pair:forward(x) return self.alpha(self.zeta(x) * self.scale) end

describe('a module', function()
  it('names what it holds in the order of assignment, its own first', function()
    local model = nn.Sequential(Pair(), nn.ModuleList { nn.LayerNorm(2) })
    assert.same({ '0.scale', '0.zeta.weight', '0.zeta.bias', '0.alpha.weight', '1.0.weight',
      '1.0.bias' }, names(model:named_parameters()))
    assert.same({ '', '0', '0.zeta', '0.alpha', '1', '1.0' }, names(model:named_modules()))
    assert.same({ '0', '1' }, names(model:named_children()))
    local buffers = model:named_buffers()
    assert.same({ '0.table', '0.scratch' }, names(buffers))
    assert.is_true(buffers[1].persistent)
    assert.is_false(buffers[2].persistent)
  end)

  it('finds a field that held a plain value before', function()
    local model = Pair()
    model.late, model.early = false, false
    model.late, model.early = nn.Linear(1, 1), nn.Linear(1, 1)
    assert.same({ '', 'zeta', 'alpha', 'early', 'late' }, names(model:named_modules()))
  end)

  it('keeps the place of a field that is assigned again, and forgets one set to nil', function()
    local model = Pair()
    model.zeta, model.alpha = nn.ReLU(), nil
    assert.same({ '', 'zeta' }, names(model:named_modules()))
    assert.same({ 'scale' }, names(model:named_parameters()))
  end)

  it('lists a shared parameter once, and its other names as ties', function()
    local model = GPT { vocab = 5, layers = 1, heads = 1, width = 4, block = 4 }
    assert.equal('transformer.wte.weight', model:named_parameters()[1].name)
    assert.same({ { alias = 'lm_head.weight', name = 'transformer.wte.weight' } },
      model:tied_names())
    local shared = nn.Linear(2, 2)
    assert.equal(2, #nn.Sequential(shared, nn.ReLU(), shared):named_parameters())
  end)

  it('has a class, and classes extend each other', function()
    local Child = nn.class('Child', Pair)
    local child = Child()
    assert.equal('Child()', tostring(child))
    assert.is_true(child:is(Child) and child:is(Pair) and child:is(nn.Module))
    assert.is_false(Pair():is(Child))
    assert.same({ 2 }, child:materialize(1)(T.ones { 2 }).shape)
  end)

  it('switches mode and walks children first', function()
    local model, order = nn.Sequential(Pair()), {}
    model:eval()
    assert.is_false(model[1].zeta.training)
    model:train()
    assert.is_true(model[1].zeta.training)
    model:apply(function(module) order[#order + 1] = module.class_name end)
    assert.same({ 'Linear', 'Linear', 'Pair', 'Sequential' }, order)
  end)

  it('freezes its parameters', function()
    local model = Pair():materialize(1)
    model.zeta:requires_grad_(false)
    model(T.ones { 2 }):sum():backward()
    assert.is_nil(model.zeta.weight.grad)
    assert.is_not_nil(model.alpha.weight.grad)
    model:zero_grad()
    assert.is_nil(model.alpha.weight.grad)
  end)

  it('computes buffers from functions when it gets its values', function()
    local model = Pair()
    assert.is_false(model.scratch.materialized)
    model:materialize(1)
    assert.same({ 0, 1, 2 }, model.scratch:tolist())
    local ran = false
    model:register_buffer('big', function() ran = true return T.zeros { 4 } end, { shape = { 4 } })
    assert.is_false(ran)
    assert.same({ 4 }, model.big.shape)
  end)
end)

describe('a call', function()
  it('runs under the path of each module and leaves none behind', function()
    local seen, Probe = {}, nn.class 'Probe'
    function Probe:forward(x) -- luacheck: ignore self
      seen[#seen + 1] = door.module_path()
      return x
    end
    local model = nn.Sequential(Probe(), nn.Sequential(Probe()))
    model(1)
    assert.same({ '0', '1.0' }, seen)
    assert.equal(0, door.module_depth())
  end)

  it('passes all results on', function()
    local Three = nn.class 'Three'
    function Three:forward(...) return ... end -- luacheck: ignore self
    assert.same({ 3, 1, nil, 3 }, { select('#', Three()(1, nil, 3)), Three()(1, nil, 3) })
  end)

  it('unwinds after an error, which keeps its traceback', function()
    local Bad = nn.class 'Bad'
    function Bad:forward() return self.nothing.here end
    local model = nn.Sequential(nn.Sequential(Bad()))
    local ok, err = pcall(model, 1)
    assert.is_false(ok)
    assert.matches("attempt to index field 'nothing'", err.message)
    assert.matches('nn_module_spec.lua', err.traceback)
    assert.equal(0, door.module_depth())
    assert.equal(4, nn.Sequential()(4))
  end)

  it('draws other masks for other modules, steps and micro-batches, else the same', function()
    local model = nn.ModuleDict()
    model.a, model.b = nn.Dropout(0.5), nn.Dropout(0.5)
    function model.forward(self, x) return self.a(x), self.b(x) end
    local x = T.ones { 64 }
    local function draw(step, micro)
      door.set_random { seed = 3, step = step, micro = micro }
      local a, b = model(x)
      return table.concat(a:tolist(), ' '), table.concat(b:tolist(), ' ')
    end
    local a, b = draw(0, 0)
    local a2, b2 = draw(0, 0)
    assert.equal(a, a2)
    assert.equal(b, b2)
    assert.are_not.equal(a, b)
    assert.are_not.equal(a, (draw(1, 0)))
    assert.are_not.equal(a, (draw(0, 1)))
    model:eval()
    assert.equal(64, model(x):sum():item())
  end)
end)

describe('state', function()
  it('goes out and in by name', function()
    local from, to = Pair():materialize(1), Pair():materialize(2)
    from.table:fill_(7)
    assert.same({ 'scale', 'zeta.weight', 'zeta.bias', 'alpha.weight', 'table' },
      names(from:state_dict()))
    to:load_state_dict(from:state_dict())
    for i, entry in ipairs(to:state_dict()) do
      assert.is_true(entry.tensor:equal(from:state_dict()[i].tensor))
    end
    to.zeta.weight.data:zero_()
    assert.are_not.equal(0, from.zeta.weight.data:abs():sum():item())
  end)

  it('of a model without values yet can be loaded, under a tied name too', function()
    local a = { vocab = 5, layers = 1, heads = 1, width = 4, block = 4 }
    local from, to, state = GPT(a):materialize(1), GPT(a), {}
    for _, entry in ipairs(from:state_dict()) do state[entry.name] = entry.tensor end
    state['lm_head.weight'], state['transformer.wte.weight'] = state['transformer.wte.weight'], nil
    to:load_state_dict(state)
    assert.is_true(to.lm_head.weight:equal(from.transformer.wte.weight))
  end)

  it('that does not fit is refused with all that is wrong, and changes nothing', function()
    local model = Pair():materialize(1)
    local before = model.scale.data:clone()
    local ok, err = pcall(model.load_state_dict, model, {
      scale = T.ones { 3 }, ['zeta.weight'] = T.ones { 2, 2 }, extra = T.ones { 1 },
      table = T.ones({ 2 }, { dtype = 'float64' }), ['alpha.weight'] = T.ones { 2, 3 },
    })
    assert.is_false(ok)
    assert.equal('state', err.kind)
    assert.equal("[nn.load_state_dict] 4 of the tensors do not fit Pair: 'zeta.weight' has shape "
      .. "[2, 2]; expected [3, 2]; 'zeta.bias' is missing; 'table' is float64; expected float32; "
      .. "'extra' is not in the model", err.message)
    assert.is_true(before:equal(model.scale.data))
  end)
end)

describe('wrong use says what is wrong:', function()
  local function says(expected, f, ...)
    assert.equal(expected, (message(f, ...):gsub('\nhint:.*', '')))
  end

  it('modules in a plain table', function()
    local model = nn.Sequential(nn.ReLU())
    model[1].parts = { nn.ReLU() }
    says("[nn.names] field 'parts' of ReLU '0' is a plain table that holds a module",
      model.assign_paths, model)
  end)

  it('a module that the model does not hold', function()
    local Stray, stray = nn.class 'Stray', nn.ReLU()
    function Stray:forward(x) return stray(x) end -- luacheck: ignore self
    says('[nn.call] a ReLU is called that the model does not hold', Stray(), T.ones { 1 })
  end)

  it('no forward', function() says('[nn.forward] ModuleDict has no forward', nn.ModuleDict()) end)

  it('sizes', function()
    says('[nn.Linear] inputs = -3; expected an integer ≥ 1', nn.Linear, -3, 4)
    says('[nn.Linear] outputs = nil; expected an integer ≥ 1', nn.Linear, 3)
    says('[nn.Embedding] width = 1.5; expected an integer ≥ 1', nn.Embedding, 3, 1.5)
    says('[nn.Conv2d] kernel_size has 3 sizes; expected 2, or one number', nn.Conv2d, 1, 1,
      { 1, 1, 1 })
    says('[nn.Conv2d] 2 groups do not divide 3 input and 4 output channels', nn.Conv2d, 3, 4, 1,
      { groups = 2 })
    says('[nn.LayerNorm] shape is empty; expected at least one size', nn.LayerNorm, {})
    says('[nn.Parameter] size 1 of the shape is -1; expected an integer ≥ 0', nn.Parameter,
      { shape = { 2, -1 } })
  end)

  it('heads that do not divide the width', function()
    says('[nn.MultiHeadAttention] 4 heads do not divide width 6', nn.MultiHeadAttention, 6, 4)
    says('[models.gpt] 3 heads do not divide width 8', GPT,
      { vocab = 5, layers = 1, heads = 3, width = 8, block = 4 })
  end)

  it('a missing or negative size of a GPT', function()
    says('[models.gpt] block = nil; expected an integer ≥ 1', GPT,
      { vocab = 5, layers = 1, heads = 2, width = 8 })
    says("[models.gpt] unknown option 'layer'; expected bias, block, dropout, eps, gelu, heads, "
      .. 'layers, loss_chunk, tied, vocab, width', GPT, { layer = 3 })
  end)

  it('a text longer than the block', function()
    local model = GPT { vocab = 5, layers = 1, heads = 2, width = 8, block = 4 }
    says('[models.gpt] a text of 5 tokens; expected at most block = 4', model:materialize(1),
      T.zeros({ 1, 5 }, { dtype = 'int64' }))
  end)

  it('options', function()
    says("[nn.Linear] unknown option 'biass'; expected bias, bias_init, dtype, init", nn.Linear, 1,
      1, { biass = true })
    says('[nn.Dropout] probability 2; expected 0 to 1', nn.Dropout, 2)
    says("[nn.GELU] approximate = 'erf'; expected none, tanh", nn.GELU, { approximate = 'erf' })
    says('[nn.Sequential] entry 1 is a number; expected a module', nn.Sequential, { 3 })
    says("[models.mlp] loss 'hinge'; expected cross_entropy, mse or bce", MLP,
      { sizes = { 1, 2 }, loss = 'hinge' })
  end)

  it('a parameter without values', function()
    says("[tensor.data] parameter 'weight' (float32[2, 2]) has no data yet; expected a "
      .. 'materialised one', function()
      local layer = nn.Linear(2, 2)
      layer:assign_paths()
      return layer.weight:tolist()
    end)
  end)
end)

describe('the MLP', function()
  it('takes a sample or its fields and learns', function()
    local model = MLP { sizes = { 4, 8, 3 }, activation = 'Tanh' }:materialize(1)
    local x = T.eye(4):narrow(0, 0, 3)
    local y = T.tensor({ 0, 2, 1 }, { dtype = 'int64' })
    assert.equal(model(x, y):item(), model { x = x, y = y }:item())
    local first = model(x, y):item()
    for _ = 1, 100 do
      model:zero_grad()
      model(x, y):backward()
      for _, p in ipairs(model:parameters()) do p.data:sub_(p.grad) end
    end
    assert.is_true(model(x, y):item() < 0.1 * first)
  end)
end)
