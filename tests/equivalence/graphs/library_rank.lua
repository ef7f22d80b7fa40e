--- What each rank runs: a module made parallel that meets other graphs, in a hand-written loop or
--- as an end-to-end module, against one device without tracing.
local Eager = require 'nnscaler.runtime.eager'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local models = require 'tests.equivalence.graphs.changing'
local nnscaler = require 'nnscaler'
local trial = require 'nnscaler.verify.trial'
local trials = require 'tests.equivalence.graphs.trials'

local how = trials.how

local function train(case, net, steps, units, unit)
  local optimizer = nnscaler.build_optimizer(net, how.optimizer.type, how.optimizer.args)
  net:train()
  for s, samples in ipairs(steps) do
    local mine = {}
    for k = unit + 1, #samples, units do mine[#mine + 1] = { k = k, sample = samples[k] } end
    nnscaler.set_random { seed = how.seed, step = s - 1, micro = 0 }
    if case.end2end then
      local list = {}
      for i, one in ipairs(mine) do list[i] = one.sample end
      net:train_step(list)
    else
      for _, one in ipairs(mine) do
        nnscaler.set_random { micro = one.k - 1 }
        net(one.sample):backward()
      end
    end
    optimizer:sync_shard_grad()
    optimizer:scale_grads(1 / #samples)
    optimizer:step()
    optimizer:zero_grad()
  end
end

---@param argument string JSON { model = number, policy, plan, ranks, micro, config, end2end }
---@return string JSON { bad = what is wrong, programs = in use }
return function(argument)
  require('nnscaler.log').set_level 'error'
  local case, bad = base.json_decode(argument), {}
  local model = models[case.model]
  local steps = trials.samples(model, case.micro)
  local want = trial.run(Eager.new(model.make(), { seed = how.seed }), steps, how)
  local net = nnscaler.parallelize(model.make(), { steps[1][1] }, case.policy, {
    plan_ngpus = case.plan, runtime_ngpus = case.ranks, pas_config = case.config,
    use_end2end = case.end2end,
  }, { gen_savedir = '' }):materialize(how.seed)
  local rank, units = comm.current():rank(), case.ranks / case.plan
  train(case, net, steps, units, math.floor(rank / case.plan))
  for _, entry in ipairs(net:named_parameters()) do
    local whole, leaf = want.weights[entry.name], entry.param
    local part = whole
    for d, start in ipairs(leaf.start or {}) do part = part:narrow(d - 1, start, leaf.shape[d]) end
    local d = (leaf.data - part):norm():item() / whole:norm():item()
    local fits = d <= trials.limit -- NaN does not
    if not fits then bad[#bad + 1] = ('%s: %g'):format(entry.name, d) end
  end
  return base.json_encode { bad = bad, programs = net._parallel.engine.training.count }
end
