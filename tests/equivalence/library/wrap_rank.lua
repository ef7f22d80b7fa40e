--- What each rank of wrap_spec runs: two steps on one device with the rows of all ranks, the same
--- with a wrapped module and own rows, and the comparison.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local optim = require 'nnscaler.optim'

local kRows, kSteps = 4, 2 -- rows of a rank

-- Rows, numbers that are no rows, a tied weight, a buffer that forward writes; with `loss` a result
-- that is no rows.
local Net = nn.class 'Net'
function Net:init(case)
  self.embed = nn.Embedding(8, 8)
  self.layers = nn.ModuleList {}
  for _ = 1, 4 do self.layers:append(nn.Linear(8, 8)) end
  self.drop = nn.Dropout(case.micro == 1 and case.units == 1 and 0.2 or 0)
  rawset(self, 'loss', case.micro == 1 and case.units == 1)
end
function Net:forward(ids, more, scale)
  local h = self.embed(ids):mean(1) + more.x * scale
  for i = 1, 4 do h = F.gelu(self.layers[i](h)) + h end
  h = self.drop(h)
  local best = h:argmax(1)
  return h:matmul(self.embed.weight:t()), { h = h, best = best }, self.loss and h:pow(2):mean() or 3
end

local function model_of(case)
  local model = Net(case):to 'float64'
  for _, entry in ipairs(model:named_parameters()) do
    entry.param.init = { kind = 'normal', mean = 0, std = 0.3 }
  end
  return model
end

local function randn(sizes, generator)
  return T.randn(sizes, { generator = generator, dtype = 'float64' })
end

local function sample(generator, rows)
  return { ids = T.randint(0, 8, { rows, 3 }, { generator = generator, dtype = 'int64' }),
    x = randn({ rows, 8 }, generator), scale = randn({ 8 }, generator),
    g = randn({ rows, 8 }, generator), dh = randn({ rows, 8 }, generator) }
end

local function rows_of(whole, rank)
  local out = { scale = whole.scale }
  for _, name in ipairs { 'ids', 'x', 'g', 'dh' } do
    out[name] = whole[name]:narrow(0, rank * kRows, kRows):clone()
  end
  return out
end

-- Forward and backward, in step 2 of all results: results, and the gradient of x.
local function pass(model, given, step)
  local x = given.x:clone():requires_grad_()
  local out, more, loss = model(given.ids, { x = x }, given.scale)
  if step == 1 then
    out:backward(given.g)
  else
    local total = (out * given.g):sum() + (more.h * given.dh):sum()
    if T.is_tensor(loss) then total = total + loss end
    total:backward()
  end
  return { out = out:detach(), h = more.h:detach(), best = more.best, dx = x.grad,
    loss = T.is_tensor(loss) and loss:detach() or nil }
end

-- Two steps on one device.
local function reference(case, batches)
  local model, parameters, out, by_name = model_of(case):materialize(5), {}, {}, {}
  for i, entry in ipairs(model:named_parameters()) do
    parameters[i] = { name = entry.name, data = entry.param, requires_grad = true }
    by_name[entry.name] = entry.param
  end
  local optimizer = optim.new({ type = case.optimizer, args = { lr = 0.05 } }, parameters)
  for step, batch in ipairs(batches) do
    for _, p in ipairs(parameters) do p.data.grad = nil end
    nnscaler.set_random { seed = 7, step = step - 1, micro = 0 }
    out[step] = pass(model, batch, step)
    optimizer:collect(function(name) return by_name[name].grad end)
    optimizer:scale(1)
    optimizer:step(0.05)
  end
  return model, out
end

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'warning'
  local rank, generator, batches = comm.current():rank(), T.generator(11), {}
  for step = 1, kSteps + 1 do batches[step] = sample(generator, kRows * case.world) end
  local plain, want = reference(case, { unpack(batches, 1, kSteps) })
  local worst, where = 0, 'nothing'
  local function compare(what, got, wanted)
    local d
    if wanted:is_floating_point() then
      d = (got - wanted):norm():item() / wanted:norm():item()
    else
      d = got:equal(wanted) and 0 or math.huge
    end
    if d > worst or d ~= d then worst, where = d, what end
  end
  local model, optimizer = nnscaler.wrap(model_of(case), { type = case.optimizer,
    args = { lr = 0.05 } }, { policy = case.policy, micro_batches = case.micro, seed = 5,
    gen_savedir = '', whole = { 'scale' },
    compute_config = { plan_ngpus = case.plan, pas_config = case.pas_config,
      use_zero = case.zero } })
  for step = 1, kSteps do
    optimizer:zero_grad()
    nnscaler.set_random { seed = 7 }
    local got = pass(model, rows_of(batches[step], rank), step)
    for _, name in ipairs { 'out', 'h', 'best', 'dx' } do
      compare(('%s of step %d'):format(name, step), got[name],
        want[step][name]:narrow(0, rank * kRows, kRows))
    end
    if got.loss then compare('loss', got.loss, want[step].loss) end
    optimizer:step()
  end
  local state = model:state_dict()
  for _, entry in ipairs(plain:state_dict()) do
    compare(entry.name, state[entry.name], entry.tensor.data)
  end
  plain:eval()
  model:eval()
  local last, whole = rows_of(batches[kSteps + 1], rank), batches[kSteps + 1]
  T.no_grad(function()
    local got = model(last.ids, { x = last.x }, last.scale)
    compare('evaluation', got, (plain(whole.ids, { x = whole.x }, whole.scale)):narrow(0,
      rank * kRows, kRows))
    model:load_state_dict(model_of(case):materialize(9):state_dict())
    plain:load_state_dict(model_of(case):materialize(9):state_dict())
    compare('loaded state', (model(last.ids, { x = last.x }, last.scale)),
      (plain(whole.ids, { x = whole.x }, whole.scale)):narrow(0, rank * kRows, kRows))
  end)
  local sharing = model._parallel.engine.sharing
  return base.json_encode { worst = worst, where = where,
    stages = sharing and sharing.stages and sharing.stages.count or 1 }
end
