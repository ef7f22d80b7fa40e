--- What the ranks of states_spec run, by name: each returns what the spec looks at.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local everybody = require 'tests.equivalence.support.everybody'
local models = require 'tests.equivalence.library.models'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'

local M = {}

local function config(plan, zero)
  return { plan_ngpus = plan, runtime_ngpus = comm.current():size(), use_zero = zero,
    zero_use_reduce_scatter = zero == 1 or nil }
end

-- What a call says that fails on some ranks.
local function message(f, ...)
  local ok, err = pcall(f, ...)
  return ok and 'no error' or tostring(err)
end

-- A model of parts on `plan` devices that took some steps, its optimizer, and a sample.
local function trained(plan, steps, zero)
  local model = models.parts.parallel(plan > 1 and 'tp' or 'dp', config(plan, zero)):materialize(3)
  local optimizer = nnscaler.build_optimizer(model, 'adamw', { lr = 0.05 })
  local generator = T.generator(2)
  for _ = 1, steps do
    model:train()
    models.parts.loss(model, models.parts.sample(generator)):backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  return model, optimizer, models.parts.sample(generator)
end

-- Sends states of all ranks to all ranks: tensors one by one, the rest as text.
local function gather_states(state)
  local group, names = everybody(), {}
  local function flat(s)
    local list = {}
    for _, name in ipairs(require('nnscaler.sorted').sorted_keys(s.weights)) do
      list[#list + 1] = { 'w', name, s.weights[name] }
    end
    for _, e in ipairs(s.optimizer.tensors) do
      list[#list + 1] = { 'o', e.name, e.data, e.parameter }
    end
    return list
  end
  local own = flat(state)
  for i, e in ipairs(own) do names[i] = { e[1], e[2], e[4] or '', e[3].shape } end
  local texts = group:exchange(base.json_encode { names = names, parts = state.parts,
    rests = state.rests, counts = state.optimizer.counts, rank = state.rank })
  local states = {}
  for r, text in ipairs(texts) do
    local said = base.json_decode(text)
    local s = { rank = said.rank, parts = said.parts, rests = said.rests, weights = {},
      optimizer = { steps = state.optimizer.steps, counts = said.counts, tensors = {} } }
    for i, e in ipairs(said.names or {}) do
      local data = r - 1 == state.rank and own[i][3] or T.empty(e[4], { dtype = 'float64' })
      group:broadcast(data, r - 1)
      if e[1] == 'w' then
        s.weights[e[2]] = data
      else
        table.insert(s.optimizer.tensors, { parameter = e[3], name = e[2], data = data })
      end
    end
    states[r] = s
  end
  return states
end

-- All units take the sample as micro-batch 0, so that their mean is the gradient of any plan.
local function step_with(model, optimizer, sample)
  model:train()
  nnscaler.set_random { micro = 0 }
  models.parts.loss(model, sample):backward()
  optimizer:sync_shard_grad()
  optimizer:scale_grads(1 / optimizer:units())
  local norm = optimizer:clip_gnorm()
  optimizer:step()
  optimizer:zero_grad()
  return norm
end

-- Norm of the first step, and the sum of the whole weights after the second.
local function go_on(model, optimizer, sample)
  local norm = step_with(model, optimizer, sample)
  step_with(model, optimizer, sample)
  local weights = nnscaler.merge_state_dicts(gather_states(nnscaler.state_dict(model, optimizer)))
  local sum = 0
  for _, name in ipairs(require('nnscaler.sorted').sorted_keys(weights)) do
    sum = sum + weights[name]:abs():sum():item()
  end
  return { norm = norm, sum = sum }
end

--- States of a plan, merged, into another plan and into the plain model.
function M.merge(case)
  local model, optimizer, sample = trained(case.plan, 2, case.zero)
  local states = gather_states(nnscaler.state_dict(model, optimizer))
  local weights, state = nnscaler.merge_state_dicts(states)
  local plain = models.parts.plain():load_state_dict(weights)
  plain:eval()
  model:eval()
  local out = {}
  T.no_grad(function()
    out.plain = models.parts.loss(plain, sample):item()
    out.parallel = models.parts.loss(model, sample):item()
  end)
  local full = nnscaler.full_state_dict(model)
  out.full = 0
  for _, name in ipairs(require('nnscaler.sorted').sorted_keys(weights)) do
    out.full = math.max(out.full, (full[name] - weights[name]):abs():sum():item())
  end
  out.gathered = model.a:gather_params()['up.weight']:equal(weights['a.up.weight'])
  out.one = go_on(model, optimizer, sample)
  local other = models.parts.parallel(case.other > 1 and 'tp' or 'dp',
    config(case.other, case.other_zero))
  other:materialize(8)
  local second = nnscaler.build_optimizer(other, 'adamw', { lr = 0.05 })
  nnscaler.load_merged_state_dict(other, weights, second, state)
  out.two = go_on(other, second, sample)
  states[1].weights['first.weight']:add_(1)
  out.differs = message(nnscaler.merge_state_dicts, states)
  out.missing = message(nnscaler.merge_state_dicts, { states[#states] })
  return out
end

--- States without copies, and back.
function M.dedup(case)
  local model, optimizer, sample = trained(case.plan, 2, case.zero)
  local state = nnscaler.deduped_state_dict(model, optimizer)
  local out = { names = 0 }
  for _ in next, state.weights do out.names = out.names + 1 end
  local states = gather_states(state)
  out.whole = select('#', nnscaler.merge_state_dicts(states))
  out.one = go_on(model, optimizer, sample)
  local again = models.parts.parallel(case.plan > 1 and 'tp' or 'dp',
    config(case.plan, case.zero))
  again:materialize(8)
  local second = nnscaler.build_optimizer(again, 'adamw', { lr = 0.05 })
  nnscaler.load_deduped_state_dict(again, state, second)
  out.two = go_on(again, second, sample)
  return out
end

--- Weights of the ranks that have some reach those that have none.
function M.broadcast(case)
  local plain = models.whole.plain():materialize(3)
  local x = models.whole.sample(T.generator(4))
  local has = comm.current():rank() < case.plan
  local opts = { gen_savedir = '', init_module_params = has }
  local model = nnscaler.parallelize(models.whole.plain(), {
    batch = { ids = x.ids, x = x.x } }, 'tp', config(case.plan), opts)
  local out = {}
  if not has then out.before = message(function() return model { ids = x.ids, x = x.x } end) end
  model:materialize(3)
  nnscaler.broadcast_weights(model)
  model:eval()
  plain:eval()
  T.no_grad(function()
    local want, got = plain { ids = x.ids, x = x.x }, model { ids = x.ids, x = x.x }
    out.distance = (want - got):abs():max():item()
  end)
  return out
end

--- Values that only rank 0 has, as if it alone had read them from a file.
function M.all()
  local x = models.whole.sample(T.generator(4))
  local args = { ids = x.ids, x = x.x }
  local module = models.whole.plain()
  if comm.current():rank() == 0 then module:materialize(3) end
  local out = {}
  for _, strategy in ipairs { 'all', 'no_weights', 'code' } do
    local made = nnscaler.parallelize(module, { batch = args }, 'dp', config(1),
      { gen_savedir = '', broadcast_strategy = strategy }):eval()
    local ok, value = pcall(function()
      return T.no_grad(function() return (made(args)):sum():item() end)
    end)
    out[strategy] = ok and value or tostring(value)
  end
  return out
end

--- Gradients are read, scaled and hooked around the sum over ranks.
function M.hooks()
  local model = models.parts.parallel('dp', config(1)):materialize(3)
  local optimizer = nnscaler.build_optimizer(model, 'sgd', { lr = 0.1 })
  local size, out = comm.current():size(), { names = {} }
  local sample = models.parts.sample(T.generator(5))
  local function gradients()
    optimizer:zero_grad()
    nnscaler.set_random { micro = 0 }
    models.parts.loss(model, sample):backward()
  end
  gradients()
  out.inside = message(function() return model.a.up.weight.grad end)
  out.outside = message(function() return model.first.weight.grad end)
  optimizer:sync_shard_grad()
  optimizer:sync_shard_grad()
  local plain = model.a.up.weight.grad:clone()
  local first = model.first.weight.grad:clone()
  optimizer:register_reducer_pre_hook(function(reducer, grad)
    out.names[reducer.name] = #reducer.ranks
    grad:div_(size)
  end)
  optimizer:register_reducer_post_hook(function(_, grad) grad:mul_(4) end)
  gradients()
  optimizer:sync_shard_grad()
  local function ratio(a, b) return a:abs():sum():item() / b:abs():sum():item() * size end
  out.inside_ratio = ratio(model.a.up.weight.grad, plain)
  out.outside_ratio = ratio(model.first.weight.grad, first)
  return out
end

--- A batch of dummies counts for nothing, and scale_fn multiplies gradients.
function M.dummies(case)
  local generator = T.generator(3)
  local samples = { models.end2end.sample(generator), models.end2end.sample(generator) }
  local pas_config = { pipeline_nmicros = 2 }
  local made = models.end2end.parallel(case.policy, { plan_ngpus = case.plan,
    pas_config = pas_config, runtime_ngpus = comm.current():size() })
  made:materialize(3):train()
  local function norm(...)
    local outputs = made:train_step(...)
    local squares = 0
    for _, leaf in ipairs(made:parameters_for_optimizer()) do
      local g = leaf.data.grad
      local n = made._parallel.engine.sharing:holders(leaf.name)
      if g then squares = squares + g:pow(2):sum():item() / n end
    end
    return math.sqrt(made._parallel.engine.sharing:over_all({ squares })[1]), outputs
  end
  -- The same by hand: units sum what they see.
  local function by_hand(...)
    local plain = models.end2end.plain():materialize(3)
    for _, sample in ipairs { ... } do models.end2end.loss(plain, sample):backward() end
    local squares = 0
    for _, p in ipairs(plain:parameters()) do squares = squares + p.grad:pow(2):sum():item() end
    return math.sqrt(squares) * comm.current():size() / case.plan
  end
  local out = { want_all = by_hand(unpack(samples)), want_first = by_hand(samples[1]) }
  out.all, out.outputs = norm(samples)
  local second = out.outputs[2]
  out.outputs = ('%d %d %s'):format(#out.outputs, #second[1].shape, second[2].mean.dtype)
  out.scaled = norm(samples, { scale_fn = function(loss) return loss * 1024 end })
  out.first = norm(samples, { is_dummy_batch = { false, true } })
  out.none = norm(samples, { is_dummy_batch = { true, true } })
  out.count = message(function() made:train_step { samples[1] } end)
  made:eval()
  out.inferred = #made:infer_step(samples)
  return out
end

--- Only inference, from files: of a module called in a model, and of one that takes samples.
function M.inference(case)
  local sample, out = models.whole.sample(T.generator(4)), {}
  local args = { ids = sample.ids, x = sample.x }
  local function made(model, dummy, end2end)
    local c = config(case.plan)
    c.inference_only, c.use_end2end = true, end2end
    return nnscaler.parallelize(model.plain():materialize(3), dummy, case.policy, c,
      { gen_savedir = case.folder, reuse = 'moo' })
  end
  out.distance = T.no_grad(function()
    local want = models.whole.plain():materialize(3):eval()(args)
    local got = made(models.whole, { batch = args })(args)
    return (want - got):abs():max():item()
  end)
  local data = models.end2end.sample(T.generator(5))
  local plain = models.end2end.plain():materialize(3):eval()
  local ended = made(models.end2end, { data = data }, true)
  local losses = ended:infer_step { data, data }
  out.losses = { losses[1][1]:item(), losses[2][1]:item() }
  out.loss = T.no_grad(function() return models.end2end.loss(plain, data):item() end)
  out.train = message(function() ended:train():train_step { data } end)
  return out
end

--- Programs that another process has written.
function M.compiled(case)
  local model = models.end2end.parallel('tp', config(2), { gen_savedir = case.folder,
    reuse = 'match' }):materialize(3)
  local data = models.end2end.sample(T.generator(5))
  local out = { trained = model:train_step({ data })[1][1]:item() }
  out.inferred = model:eval():infer_step({ data })[1][1]:item()
  return out
end

--- Units meet new shapes at different times.
function M.shapes()
  local plain, model = models.parts.plain():materialize(3), models.parts.parallel('dp', config(1))
  model:materialize(3)
  local optimizer = nnscaler.build_optimizer(model, 'sgd', { lr = 0.1 })
  local function first_rows(sample, n)
    return { x = sample.x:narrow(0, 0, n), y = sample.y:narrow(0, 0, n) }
  end
  local out = { worst = 0 }
  for step, rows in ipairs { { 4, 4 }, { 3, 4 }, { 4, 3 }, { 2, 3 } } do
    local sample = models.parts.sample(T.generator(step))
    optimizer:zero_grad()
    for _, p in ipairs(plain:parameters()) do p.grad = nil end
    local mine = first_rows(sample, rows[comm.current():rank() + 1])
    models.parts.loss(model, mine):backward()
    optimizer:sync_shard_grad()
    for unit, n in ipairs(rows) do
      nnscaler.set_random { micro = unit - 1 }
      models.parts.loss(plain, first_rows(sample, n)):backward()
    end
    optimizer:set_random()
    for i, entry in ipairs(plain:named_parameters()) do
      local want, got = entry.param.grad, model:named_parameters()[i].param.grad
      if want then
        out.worst = math.max(out.worst, (want - got):norm():item() / want:norm():item())
      end
    end
  end
  return out
end

--- A unit that calls a module whose weights rest in shards less often than another.
function M.lockstep()
  local model = models.parts.parallel('fsdp', config(1)):materialize(3)
  local sample = models.parts.sample(T.generator(1))
  return { said = message(function()
    for _ = 0, comm.current():rank() do models.parts.loss(model, sample):backward() end
    nnscaler.build_optimizer(model, 'sgd', { lr = 0.1 }):step()
  end) }
end

--- What only several ranks can get wrong.
function M.rules()
  local out, Net = {}, nn.class 'Net'
  function Net:init() self.fc = nn.Linear(4, 4) end
  function Net:forward(x) return F.relu(self.fc(x)) end
  local x, opts = T.ones { 4, 4 }, { gen_savedir = '' }
  local function parallel(policy, plan, zero)
    return nnscaler.parallelize(Net(), { x }, policy, { plan_ngpus = plan, use_zero = zero }, opts)
  end
  out.stages = message(parallel, 'pp', 2)
  local Net2 = nn.class 'Net'
  function Net2:init() self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4) end
  function Net2:forward(v) return self.b(self.a(v)) end
  local function wrap(pas_config)
    return nnscaler.wrap(Net2(), nil, { policy = 'pp', gen_savedir = '',
      compute_config = { pas_config = pas_config } })
  end
  out.schedule = message(wrap { pipeline_scheduler = '1f1b' }, x)
  out.rows = message(wrap {}, T.ones { 4 - comm.current():rank(), 4 })
  local Two = nn.class 'Two'
  function Two:init()
    self.a = parallel('dp', 1)
    self.b = parallel('tp', 2)
  end
  out.sizes = message(nnscaler.build_optimizer, Two():materialize(1), 'sgd', {})
  out.parts = message(nnscaler.build_optimizer, parallel('fsdp', 1):materialize(1),
    { defaults = { lr = 1 }, update = function() end }, {})
  out.object = message(nnscaler.build_optimizer, parallel('dp', 1, true):materialize(1),
    function() return { step = function() end } end, {})
  out.whole = message(nnscaler.build_optimizer, parallel('dp', 1, 1):materialize(1),
    'adafactor', {})
  local tp = parallel('tp', 2):materialize(1)
  out.sample = message(tp, x * (comm.current():rank() + 1))
  local End = nn.class 'End'
  function End:init() self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4) end
  function End:forward(data) return self.b(self.a(data.x)):pow(2):mean() end
  local function ended(policy, pas_config)
    return nnscaler.parallelize(End(), { data = { x = x } }, policy,
      { plan_ngpus = 2, use_end2end = true, pas_config = pas_config }, opts):materialize(1)
  end
  out.samples = message(function()
    ended('tp'):train_step { { x = x * (comm.current():rank() + 1) } }
  end)
  local pp = ended('pp', { pipeline_nmicros = 2 })
  out.trained = message(function() pp:train_step { { x = x } } end)
  out.inferred = message(function() pp:eval():infer_step { { x = x } } end)
  local dp = parallel('dp', 1):materialize(1)
  out.grad = message(function()
    dp(x):sum():backward()
    return dp.fc.weight.grad
  end)
  local input = x:clone():requires_grad_()
  out.input = T.grad(dp(input):sum(), input)[1]:dim()
  out.asked = message(T.grad, dp(x):sum(), { dp.fc.bias, dp.fc.weight })
  out.missing = message(nnscaler.merge_state_dicts, { nnscaler.state_dict(tp) })
  out.another = message(function()
    nnscaler.load_deduped_state_dict(tp, nnscaler.deduped_state_dict(dp))
  end)
  return out
end

return function(argument)
  require('nnscaler.log').set_level 'error'
  local case = base.json_decode(argument)
  return base.json_encode(M[case.run](case))
end
