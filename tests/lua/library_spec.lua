--- Parallel modules on one rank against the same modules under LibTorch's autograd.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local message = require 'tests.lua.support.message'
local runs = require 'tests.lua.support.runs'

local function near(want, got, what)
  local scale = math.max(1e-3, want:abs():max():item())
  assert.is_true((want - got):abs():max():item() <= 1e-12 * scale, what)
end

local function randn(sizes, seed)
  return T.randn(sizes, { generator = T.generator(seed), dtype = 'float64' })
end

local Heavy = nn.class 'Heavy'
function Heavy:init()
  self.fc, self.proj = nn.Linear(4, 6), nn.Linear(6, 4)
  self.scale = nn.Parameter { shape = {}, init = nn.init.constant(2) }
end
function Heavy:forward(batch, y, flag)
  local h = F.gelu(self.fc(batch.x)) * self.scale
  if flag then h = h + 1 end
  return self.proj(h), { top = h:argmax(1), list = { y * 2, batch.x }, n = 3 }, y
end

local function heavy()
  local module = Heavy()
  return module:to 'float64'
end

local options = { gen_savedir = '' }
local function parallel(module, args, config, opts)
  return nnscaler.parallelize(module, args, 'dp', config or {}, opts or options)
end

local function inputs(seed)
  return { x = randn({ 3, 4 }, seed):requires_grad_() }, randn({ 2 }, seed + 1):requires_grad_()
end

describe('a parallel module', function()
  it('is one function of autograd with several results and nested tables', function()
    local plain, made = heavy(), parallel(heavy(), { batch = { x = randn({ 3, 4 }, 1)
      :requires_grad_() }, y = randn({ 2 }, 2):requires_grad_() })
    plain:materialize(3)
    made:materialize(3)
    local function run(module)
      local batch, y = inputs(5)
      local out, more, last = module(batch, y)
      assert.are.equal(3, more.n)
      assert.is_false(more.top.requires_grad)
      local loss = (out * out):sum() + more.list[1]:pow(2):sum() + (more.list[2] * 3):sum()
        + last:sum()
      loss:backward()
      return { loss:detach(), batch.x.grad, y.grad, more.top:double(), out:detach() }
    end
    local want, got = run(plain), run(made)
    for i = 1, 5 do near(want[i], got[i], 'value ' .. i) end
    local names = {}
    for i, entry in ipairs(plain:named_parameters()) do
      local twin = made:named_parameters()[i]
      names[i] = entry.name
      assert.are.equal(entry.name, twin.name)
      near(entry.param.data, twin.param.data, entry.name)
      near(entry.param.grad, twin.param.grad, 'gradient of ' .. entry.name)
    end
    assert.are.same({ 'scale', 'proj.weight', 'proj.bias', 'fc.weight', 'fc.bias' }, names)
    local out = made(inputs(5))
    assert.are.equal('Parallel<Heavy>', out.grad_fn)
  end)

  it('adds up gradients of several calls, and takes results that nothing uses', function()
    local plain, made = heavy(), parallel(heavy(), { { x = randn({ 3, 4 }, 1) }, randn({ 2 }, 2) })
    plain:materialize(3)
    made:materialize(3)
    for _, module in ipairs { plain, made } do
      local a, ya = inputs(5)
      local b, yb = inputs(9)
      local out = module(a, ya)
      local _, more = module(b, yb, true)
      local loss = out:sum() + more.list[1]:sum()
      loss:backward()
      loss = module(b, yb, true):pow(3):sum()
      loss:backward()
    end
    for i, entry in ipairs(plain:named_parameters()) do
      near(entry.param.grad, made:named_parameters()[i].param.grad, entry.name)
    end
  end)

  it('is a module with the names, buffers and modes of the original', function()
    local Net = nn.class 'Net'
    function Net:init()
      self.layers = nn.ModuleList { nn.Linear(3, 4), nn.BatchNorm2d(4) }
      self.head = nn.Linear(4, 3, { bias = false })
      self.tied = self.head.weight
      self:register_buffer('ramp', function() return T.arange(3, { dtype = 'float32' }) end,
        { persistent = false })
      self.drop = nn.Dropout(0.3)
    end
    function Net:forward(x)
      local h = self.layers[2](self.layers[1](x):reshape { 5, 4, 1, 1 }):reshape { 5, 4 }
      return self.drop(self.head(h)) + self.ramp, self.training and 'training' or 'evaluation'
    end
    local Outer = nn.class 'Outer'
    function Outer:init(inner) self.before, self.net = nn.Dropout(0.3), inner end
    function Outer:forward(x) return self.net(self.before(x)) end

    local plain = Outer(Net())
    local dummy = T.zeros { 5, 3 }
    local made = Outer(parallel(Net(), { dummy }))
    for _, model in ipairs { plain, made } do
      model:materialize(4)
      for step = 1, 3 do
        nnscaler.set_random { seed = 3, step = step, micro = 1 }
        model(T.randn({ 5, 3 }, { generator = T.generator(step) }))
      end
    end
    local function names(model)
      local list = {}
      for _, entry in ipairs(model:state_dict()) do list[#list + 1] = entry.name end
      table.sort(list)
      return list
    end
    assert.are.same(names(plain), names(made))
    assert.are.same(plain:tied_names(), made:tied_names())
    local state = {}
    for _, entry in ipairs(made:state_dict()) do state[entry.name] = entry.tensor end
    for _, entry in ipairs(plain:state_dict()) do
      assert.is_true(T.allclose(entry.tensor.data, state[entry.name].data, 1e-6, 1e-7), entry.name)
    end
    local x = T.randn({ 5, 3 }, { generator = T.generator(9) })
    for _, mode in ipairs { 'training', 'evaluation' } do
      plain:train(mode == 'training')
      made:train(mode == 'training')
      T.no_grad(function()
        local want = plain(x)
        local got, said = made(x)
        assert.are.equal(mode, said)
        assert.is_true(T.allclose(want, got, 1e-6, 1e-6), mode)
      end)
    end
  end)

  it('is made of classes, each instance with weights of its own', function()
    local widths = {}
    local Wide = nn.class 'Wide'
    function Wide:init(width)
      widths[#widths + 1] = width
      self.fc = nn.Linear(3, width)
    end
    function Wide:forward(x) return self.fc(x) end
    local Class = nnscaler.parallelize(Wide, { x = T.zeros({ 2, 3 }, { dtype = 'float64' }) }, 'dp',
      {}, { gen_savedir = '', module_dtype = 'float64', module_fn = function() return Wide(5) end })
    local Two = nn.class 'Two'
    function Two:init() self.a, self.b = Class(), Class { init_params = false } end
    function Two:forward(x) return self.a(x) + self.b(x) end
    local two = Two():materialize(1)
    assert.are.same({ 5 }, widths)
    assert.are.equal('float64', two.a.fc.weight.dtype)
    assert.is_false(two.b.fc.weight.materialized)
    local x = randn({ 2, 3 }, 1)
    assert.is_truthy(message(two, x):find('load a state dict first', 1, true))
    two.b:load_state_dict { ['fc.weight'] = randn({ 5, 3 }, 2), ['fc.bias'] = randn({ 5 }, 3) }
    assert.is_false(two.a.fc.weight:equal(two.b.fc.weight))
    near(two.a(x) + two.b(x), two(x), 'sum')
  end)

  it('draws no values but those of buffers in no state under init_module_params = false', function()
    local Net = nn.class 'Net'
    function Net:init()
      self.fc = nn.Linear(2, 2)
      self:register_buffer('ramp', function() return T.arange(2, { dtype = 'float32' }) end,
        { persistent = false })
      self:register_buffer('kept', function() return T.ones { 2 } end)
    end
    function Net:forward(x) return self.fc(x) * self.kept + self.ramp end
    local made = parallel(Net(), { T.zeros { 1, 2 } }, {}, {
      gen_savedir = '', init_module_params = false }):materialize(1)
    assert.is_false(made.fc.weight.materialized)
    assert.is_false(made.kept.materialized)
    assert.are.same({ 0, 1 }, made.ramp.data:tolist())
    made:load_state_dict { ['fc.weight'] = T.eye(2), ['fc.bias'] = T.zeros { 2 },
      kept = T.ones { 2 } * 3 }
    assert.are.same({ { 3, 4 } }, made:eval()(T.ones { 1, 2 }):tolist())
  end)

  it('takes values of a module that has some, and leaves that module alone', function()
    local module = heavy():materialize(6)
    local made = parallel(module, { { x = randn({ 3, 4 }, 1) }, randn({ 2 }, 2) })
    assert.is_true(made.fc.weight:equal(module.fc.weight))
    T.no_grad(function() made.fc.weight:zero_() end)
    assert.is_true(module.fc.weight:abs():sum():item() > 0)
    assert.are.equal(made, parallel(made, {}))
  end)

  it('runs without backward under inference_only and in inference mode', function()
    local made = parallel(heavy():materialize(6), { { x = randn({ 3, 4 }, 1) }, randn({ 2 }, 2) },
      { inference_only = true })
    local out = T.inference_mode(function() return (made(inputs(3))) end)
    near(heavy():materialize(6)(inputs(3)):detach(), out, 'result')
    assert.is_false(made.training)
  end)

  it('writes programs of all ranks without loading them', function()
    local folder = runs.folder()
    finally(function() runs.remove(folder) end)
    local function compile(opts)
      opts.gen_savedir = folder
      local Net = nn.class 'Net'
      function Net:init() self.fc = nn.Linear(8, 8) end
      function Net:forward(x) return self.fc(x) end
      return nnscaler.parallelize(Net(), { x = T.zeros { 4, 8 } }, 'tp',
        { plan_ngpus = 2, runtime_ngpus = 4 }, opts)
    end
    assert.is_nil(compile { load_module = false })
    assert.is_nil(compile { load_module = false, instance_name = 'second' })
    assert.are.same({ 'Net', 'Net_second' }, base.list_folder(folder))
    local files = {}
    for _, name in ipairs(base.list_folder(folder .. '/Net')) do
      if name:find '%.lua$' then files[#files + 1] = name end
    end
    assert.are.equal(8, #files)
    assert.are.equal('gencode0.eval.lua', files[1])
    assert.are.equal('gencode3.lua', files[8])
  end)

  it('takes arguments by name, by position and with holes', function()
    local Sum = nn.class 'Sum'
    function Sum:forward(x, scale, y) return (scale and x * scale or x) + (y or 0) end
    local Rest = nn.class 'Rest'
    function Rest:forward(...)
      local x, scale, y = ...
      return (scale and x * scale or x) + (y or 0)
    end
    local Named = nn.class 'Named'
    Named.forward, Named.forward_arg_names = Rest.forward, { 'x', 'scale', 'y' }
    local one = T.ones { 2 }
    for _, case in ipairs {
      { Sum, { x = one, y = one } }, { Sum, { n = 3, one, nil, one } },
      { Rest, { n = 3, one, nil, one } }, { Named, { y = one, x = one } },
    } do
      local made = parallel(case[1](), case[2])
      assert.are.same({ 2, 2 }, made(one, nil, one):tolist())
      assert.are.same({ 3, 3 }, made(one, 3):tolist())
      assert.are.same({ 5, 5 }, made(one, one * 4, one):tolist())
    end
  end)

  it('reuses its traced graph under reuse = graph', function()
    local folder = runs.folder()
    finally(function() runs.remove(folder) end)
    local function made(factor)
      local Net = nn.class 'Net'
      function Net:forward(x) return x * factor end
      return nnscaler.parallelize(Net(), { x = T.ones { 2 } }, 'dp', {}, {
        gen_savedir = folder, reuse = 'graph' })
    end
    assert.are.same({ 2, 2 }, made(2)(T.ones { 2 }):tolist())
    assert.are.same({ 2, 2 }, made(3)(T.ones { 2 }):tolist())
  end)

  it('frozen parameters get no gradient, and no rank the addend of another', function()
    local module = heavy()
    module.fc:requires_grad_(false)
    local made = parallel(module, { { x = randn({ 3, 4 }, 1) }, randn({ 2 }, 2) }):materialize(1)
    made(inputs(3)):sum():backward()
    assert.is_nil(made.fc.weight.grad)
    assert.is_truthy(made.proj.weight.grad)
    assert.are.equal(3, #made:parameters_for_optimizer())
  end)
end)

describe('an optimizer of parallel modules', function()
  local function fresh(optimizer_fn, args)
    local model = parallel(heavy(), { { x = randn({ 3, 4 }, 1) }, randn({ 2 }, 2) })
      :materialize(1)
    return model, nnscaler.build_optimizer(model, optimizer_fn, args)
  end

  local function train(optimizer_fn, args, closure)
    local model, optimizer = fresh(optimizer_fn, args)
    for step = 1, 3 do
      local function loss()
        local value = model(inputs(step)):pow(2):sum()
        value:backward()
        return value
      end
      if closure then
        assert.is_true(optimizer:step(loss):item() > 0)
      else
        loss()
        optimizer:step()
        optimizer:zero_grad()
      end
    end
    return model.fc.weight.data:clone(), optimizer
  end

  it('may be a function, and runs closures', function()
    local want = train('sgd', { lr = 0.01 })
    near(want, train('sgd', { lr = 0.01 }, true), 'closure')
    local function descent(parameters, args)
      return { lr = args.lr, step = function(self)
        T.no_grad(function()
          for _, p in ipairs(parameters) do p.data:sub_(p.data.grad * self.lr) end
        end)
      end }
    end
    near(want, train(descent, { lr = 0.01 }), 'function')
  end)

  it('keeps its state', function()
    local _, optimizer = train('adamw', { lr = 0.01 })
    local state = optimizer:state_dict()
    assert.are.equal(3, state.steps)
    assert.are.equal(10, #state.tensors)
    local _, other = fresh('adamw', { lr = 0.01 })
    assert.are.equal(0, other.steps)
    other:load_state_dict(state)
    assert.are.equal(3, other.steps)
    for i, entry in ipairs(other:state_dict().tensors) do
      assert.are.equal(state.tensors[i].name, entry.name)
      assert.is_true(state.tensors[i].data:equal(entry.data), entry.name)
      assert.is_true(entry.data:abs():sum():item() > 0, entry.name)
    end
  end)
end)
