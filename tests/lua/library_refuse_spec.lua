--- Every limitation of parallel modules that docs/library.md lists, each with its error.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local message = require 'tests.lua.support.message'
local runs = require 'tests.lua.support.runs'
local sorted = require 'nnscaler.sorted'

local Net = nn.class 'Net'
function Net:init() self.fc = nn.Linear(3, 3) end
function Net:forward(x, y)
  local out = self.fc(x):sigmoid()
  return y and out + y or out
end

local End = nn.class 'End'
function End:init() self.fc = nn.Linear(3, 1) end
function End:forward(data)
  return self.fc(data.x):pow(2):mean()
end

local options = { gen_savedir = '' }
local function x() return T.ones { 2, 3 } end
local function make(config, opts)
  return nnscaler.parallelize(Net(), { x = x() }, 'dp', config or {}, opts or options)
end
local function ready(config, opts) return make(config, opts):materialize(1) end
local function ended()
  local module = nnscaler.parallelize(End(), { data = { x = x() } }, 'dp', { use_end2end = true },
    options)
  return module:materialize(1)
end

local function wrapped(opts, optimizer, module)
  opts = opts or {}
  opts.gen_savedir, opts.policy = '', 'dp' -- one that joins no ranks
  return nnscaler.wrap(module or Net(), optimizer, opts)
end

-- A result that is no rows, and one that grows otherwise.
local Odd = nn.class 'Odd'
function Odd:init(f) rawset(self, 'f', f) end
function Odd:forward(v) return self.f(v) end

local cases = {
  -- what can be wrapped, and how it is called
  { 'wrapping a table', '[library.wrap] a table cannot be wrapped',
    function() nnscaler.wrap {} end },
  { 'an optimizer that is a name', '[library.wrap] the optimizer is a string; expected a table',
    function() nnscaler.wrap(Net(), 'sgd') end },
  { 'no micro-batches', '[library.wrap] micro_batches is 0; expected a whole number',
    function() wrapped { micro_batches = 0 } end },
  { 'wrapping end to end', '[library.wrap] compute_config.use_end2end; a wrapped module is called',
    function() wrapped { compute_config = { use_end2end = true } } end },
  { 'wrapping a parallel module', '[library.wrap] Parallel', function() nnscaler.wrap(make()) end },
  { 'a step before the first call', '[library.wrap] optimizer.step before the first call',
    function()
      local _, optimizer = wrapped({}, { type = 'sgd' })
      optimizer:zero_grad()
      optimizer:step()
    end },
  { 'rows that differ', "[library.wrap] argument 'y' of Net has 3 rows, 'x' has 2",
    function() (wrapped())(x(), T.ones { 3 }) end },
  { 'rows that micro-batches do not divide', '[library.wrap] 3 rows for 2 micro-batches',
    function() (wrapped { micro_batches = 2 })(T.ones { 3, 3 }) end },
  { 'a mean over several micro-batches', '[library.wrap] result 1 of Odd has shape [], and [] for '
    .. 'twice as many samples; expected a row for each under 2 micro-batches', function()
      (wrapped({ micro_batches = 2 }, nil, Odd(function(v) return v:mean() end)))(x())
    end },
  { 'a result with rows elsewhere', '[library.wrap] result 1 of Odd has shape [3, 1], and [3, 2]',
    function()
      (wrapped({ micro_batches = 2 }, nil, Odd(function(v) return v:t() end)))(x())
    end },
  { 'a wrapped module in another', "[library.wrap] 'inner' is a wrapped module inside of another",
    function()
      local Outer = nn.class 'Outer'
      function Outer:init() self.inner = wrapped() end
      function Outer:forward(v) return self.inner(v) end
      Outer()(x())
    end },
  { 'planning again', '[library.wrap] plan_for of a module that has a plan', function()
      local module = wrapped()
      module(x())
      module:plan_for(2, x())
    end },
  -- keys that mean nothing here
  { 'constant folding', '[library.compute_config] constant_folding is true; only false is taken: '
    .. 'numbers of Lua', function() make { constant_folding = true } end },
  { 'a strategy of tracing', "trace_strategy is cpu; only cuda_run_cpu_offload is taken: tracing "
    .. 'runs no operator', function() make { trace_strategy = 'cpu' } end },
  { 'sums beside backward', 'use_async_reducer is true; only false is taken: gradients are summed '
    .. 'when the optimizer asks for them', function() make { use_async_reducer = true } end },
  { 'a bucket of no size', 'reducer_bucket_cap_mb is 0; expected 0.001 to 1e6',
    function() make { reducer_bucket_cap_mb = 0 } end },
  -- what can be made parallel
  { 'a table that is not a module', '[library.parallelize] a table cannot be made parallel',
    function() nnscaler.parallelize({}, { x() }, 'dp', {}, options) end },
  { 'a policy of another type', '[library.parallelize] the policy is a number',
    function() nnscaler.parallelize(Net(), { x() }, 3, {}, options) end },
  { 'module_fn with a module', '[library.parallelize] module_fn with a module',
    function() make({}, { gen_savedir = '', module_fn = function() return Net() end }) end },
  { 'module_fn that returns no module', '[library.parallelize] module_fn returned a number',
    function()
      nnscaler.parallelize(Net, { x() }, 'dp', {}, {
        gen_savedir = '', module_fn = function() return 3 end })
    end },
  { 'a parallel module inside a module', "[library.nested] 'a' of Outer is parallel already",
    function()
      local Outer = nn.class 'Outer'
      function Outer:init() self.a = make() end
      function Outer:forward(v) return self.a(v) end
      nnscaler.parallelize(Outer(), { v = x() }, 'dp', {}, options)
    end },
  { 'a parallel module in a model that is traced', '[library.nested] Net is parallel already',
    function()
      local Outer = nn.class 'Outer'
      function Outer:init() self.a = ready() end
      function Outer:forward(v) return self.a(v):mean() end
      require('nnscaler.trace').trace(Outer(), { x() })
    end },
  { 'a class of a parallel class', "[nn.class] the parent of 'More' is not a class",
    function() nn.class('More', nnscaler.parallelize(Net, { x() }, 'dp', {}, options)) end },
  { 'a method of a parallel class', "[library.class] 'forward' set in the parallel class of Net",
    function()
      local Class = nnscaler.parallelize(Net, { x() }, 'dp', {}, options)
      function Class:forward() end
    end },
  { 'rank threads without a script', '[library.init] ranks = 2 outside of a script',
    function() nnscaler.init { ranks = 2 } end },
  -- options
  { 'an unknown key of compute_config', "compute_config has the key 'plan_ngpu'; expected",
    function() make { plan_ngpu = 1 } end },
  { 'a key of another type', 'compute_config.plan_ngpus is a string; expected a number',
    function() make { plan_ngpus = '1' } end },
  { 'ranks that plans do not divide', 'runtime_ngpus is 3; expected a multiple of plan_ngpus = 2',
    function() make { plan_ngpus = 2, runtime_ngpus = 3 } end },
  { 'an unknown level of ZeRO', 'use_zero is 4; expected 0 to 3, or true or false',
    function() make { use_zero = 4 } end },
  { 'half a group', 'zero_ngroups is 0.5; expected a whole number',
    function() make { zero_ngroups = 0.5 } end },
  { 'half a device', 'plan_ngpus is 0.5; expected a whole number',
    function() make { plan_ngpus = 0.5 } end },
  { 'more ranks than there are', 'runtime_ngpus is 4; the run has 1 ranks',
    function() make { runtime_ngpus = 4 } end },
  { 'an unknown option', "opts has the key 'reuses'; expected",
    function() make({}, { reuses = 'match' }) end },
  { 'an unknown reuse', "reuse is 'yes'; expected match, override, moo, graph",
    function() make({}, { reuse = 'yes' }) end },
  { 'an unknown strategy', "broadcast_strategy is 'some'; expected none, code, no_weights, all",
    function() make({}, { broadcast_strategy = 'some' }) end },
  { 'compiling for an unknown number of ranks', 'without compute_config.runtime_ngpus',
    function() make({}, { gen_savedir = '', load_module = false }) end },
  -- arguments of forward
  { 'an unknown argument',
    "dummy_args has 'z', which is not an argument of Net.forward; expected x, y",
    function() nnscaler.parallelize(Net(), { z = x() }, 'dp', {}, options) end },
  { 'dummy_args of another type', 'dummy_args is a number; expected arguments of forward by name',
    function() nnscaler.parallelize(Net(), 3, 'dp', {}, options) end },
  -- end-to-end modules
  { 'two samples', "gives 2 arguments of Net.forward; an end-to-end module takes one sample, 'x'",
    function()
      nnscaler.parallelize(Net(), { x = x(), y = x() }, 'dp', { use_end2end = true }, options)
    end },
  { 'a loss that is not a scalar', '[trace.loss] the loss that forward returns',
    function()
      nnscaler.parallelize(Net(), { x = x() }, 'dp', { use_end2end = true }, options)
    end },
  { 'forward of an end-to-end module', 'forward of End, an end-to-end module; expected train_step',
    function() ended() { x = x() } end },
  { 'train_step of another module', 'train_step of Net, which is not an end-to-end module',
    function() ready():train_step { x() } end },
  { 'samples that are not a list', 'samples is a userdata; expected a list',
    function() ended():train_step(x()) end },
  { 'no sample', 'samples is an empty list', function() ended():train_step { } end },
  { 'train_step in evaluation mode', 'train_step of End in evaluation mode',
    function() ended():eval():train_step { { x = x() } } end },
  { 'infer_step in training mode', 'infer_step of End in training mode',
    function() ended():infer_step { { x = x() } } end },
  { 'dummies for other samples', 'is_dummy_batch has 2 entries for 1 samples',
    function() ended():train_step({ { x = x() } }, { is_dummy_batch = { true, false } }) end },
  { 'a scale_fn without the loss', 'scale_fn returned no scalar tensor that depends on the loss',
    function() ended():train_step({ { x = x() } }, { scale_fn = function() return 3 end }) end },
  -- running
  { 'no values', "[library.values] parameter 'fc.weight' of Net has no values yet",
    function() make()(x()) end },
  { 'a part alone', "[library.part] 'fc' is part of a parallel module",
    function() ready().fc(x()) end },
  { 'a part in another mode', "[library.training] part 'fc' is in evaluation mode",
    function()
      local module = ready()
      module(x())
      module.fc:eval()
      module(x())
    end },
  { 'training without a backward', '[library.inference_only] Net was made with',
    function() ready({ inference_only = true }):train()(x()) end },
  { 'backward in evaluation mode', '[library.backward] Net ran in evaluation mode',
    function() ready():eval()(x()):sum():backward() end },
  { 'backward twice', '[library.backward] backward through Net a second time',
    function()
      local loss = ready()(x()):sum()
      loss:backward(nil, { retain_graph = true })
      loss:backward()
    end },
  { 'gradients of gradients', 'create_graph is not supported by parallel modules',
    function()
      local v = x():requires_grad_()
      T.grad(ready()(v):sum(), v, { create_graph = true })
    end },
  { 'a write to a result that backward reads', 'result 1 of Net was written between',
    function()
      local out = ready()(x())
      out:mul_(2)
      out:sum():backward()
    end },
  { 'a write to an input that backward reads', "input 'x' of Net was written between",
    function()
      local v = (x():requires_grad_() * 1)
      local out = ready()(v)
      T.no_grad(function() v:mul_(2) end)
      out:sum():backward()
    end },
  { 'a write to a parameter', "parameter 'fc.weight' of Net was written between",
    function()
      local module = ready()
      local out = module(x())
      T.no_grad(function() module.fc.weight:mul_(2) end)
      out:sum():backward()
    end },
  { 'another dtype later', "[tensor.dtype] 'fc.weight' belongs to a parallel module",
    function() ready():to 'float64' end },
  -- optimizers
  { 'a model without parallel modules', '[library.build_optimizer] Net has no parallel module',
    function() nnscaler.build_optimizer(Net():materialize(1), 'sgd', {}) end },
  { 'an end-to-end module inside another', "'a' is an end-to-end module inside of another",
    function()
      local Outer = nn.class 'Outer'
      function Outer:init() self.a = ended() end
      nnscaler.build_optimizer(Outer(), 'sgd', {})
    end },
  { 'an optimizer of what is not trained', 'was made with inference_only; it is not trained',
    function() nnscaler.build_optimizer(ready { inference_only = true }, 'sgd', {}) end },
  { 'an optimizer before values', "parameter 'fc.weight' has no values yet",
    function() nnscaler.build_optimizer(make(), 'sgd', {}) end },
  { 'a function that makes no optimizer', 'optimizer_fn returned a number; expected an optimizer',
    function() nnscaler.build_optimizer(ready(), function() return 1 end, {}) end },
  { 'scaling before the sum', '[library.scale_grads] gradients are not summed over the ranks yet',
    function() nnscaler.build_optimizer(ready(), 'sgd', {}):scale_grads(2) end },
  { 'backward after the sum', 'gradients of Net were already summed over the ranks',
    function()
      local module = ready()
      local optimizer = nnscaler.build_optimizer(module, 'sgd', {})
      module(x()):sum():backward()
      optimizer:step()
      module(x()):sum():backward()
    end },
  { 'the state of an optimizer without one', 'the optimizer of optimizer_fn has no method state',
    function()
      nnscaler.build_optimizer(ready(), function() return { step = function() end } end, {})
        :state_dict()
    end },
  -- states
  { 'something else than states', 'entry 1 is not a state; expected what state_dict returns',
    function() nnscaler.merge_state_dicts { { weights = {} } } end },
  { 'a weight of another shape', "'fc.weight' has shape [2, 2]; expected [3, 3]",
    function() nnscaler.load_merged_state_dict(ready(), { ['fc.weight'] = T.ones { 2, 2 } }) end },
}

-- What several ranks get wrong: errors of tests/equivalence/library/ranks.lua.
local rules = {
  stages = '[library.stages] the plan of Net has 2 stages; expected one for a module that is',
  schedule = "[lower.stages] the plan of Net has 2 stages under schedule '1f1b'; expected 'gpipe'",
  rows = '[library.wrap] rank 1 gives Net the arguments v float32[3, 4], rank 0 v float32[4, 4]',
  object = "the state of 'fc.weight' rests in shards (use_zero=1), and the optimizer of "
    .. 'optimizer_fn updates whole parts by itself',
  whole = "the rank holds a part of 'fc.weight', and adafactor updates whole weights",
  sizes = "'b' has plan_ngpus = 2, runtime_ngpus = 2; expected 1 and 2, as 'a' has",
  parts = "the rank holds a part of 'fc.weight', and the optimizer says neither slots nor "
    .. 'elementwise',
  sample = 'rank 1 has another micro-batch 0 than rank 0',
  samples = 'rank 1 has another micro-batch 0 than rank 0',
  trained = '[library.train_step] 1 samples; the schedule of the plan has 2 micro-batches',
  inferred = '[library.infer_step] 1 samples; the schedule of the plan has 2 micro-batches',
  grad = "[tensor.grad] the gradient of 'fc.weight' is read before it is summed over the ranks",
  asked = "[tensor.grad] the gradient of 'fc.bias' is read before it is summed over the ranks",
  missing = 'elements in these states',
  another = 'lies in another way than when the state of rank',
  lockstep = 'the ranks of group 0,1 disagree',
}

local said = {} -- all messages

describe('of a parallel module', function()
  for _, case in ipairs(cases) do
    it(case[1] .. ' is refused', function()
      local text = message(case[3])
      said[#said + 1] = text
      assert.is_truthy(text:find(case[2], 1, true), text)
    end)
  end

  it('files of another model are refused under match', function()
    local folder = runs.folder()
    finally(function() runs.remove(folder) end)
    local function write(width, reuse)
      local Wide = nn.class 'Wide'
      function Wide:init() self.fc = nn.Linear(3, width) end
      function Wide:forward(v) return self.fc(v) end
      return nnscaler.parallelize(Wide(), { v = x() }, 'dp', {}, { gen_savedir = folder,
        reuse = reuse })
    end
    write(4)
    write(4)
    said[#said + 1] = message(write, 5)
    assert.is_truthy(said[#said]:find('[codegen.match]', 1, true))
    write(5, 'moo')
    write(4, 'override')
  end)

  it('what several ranks get wrong is refused', function()
    local function run(name)
      return base.json_decode(comm.run_local(2, 'tests.equivalence.library.ranks',
        base.json_encode { run = name })[1])
    end
    local got = run 'rules'
    got.lockstep = run('lockstep').said
    for name, part in sorted.sorted_pairs(rules) do
      said[#said + 1] = got[name]
      assert.is_truthy(got[name]:find(part, 1, true), got[name])
    end
  end)

  it('docs/library.md lists errors as they are', function()
    local rows = base.file_read('docs/library.md'):match '\n## Limitations\n(.*)$'
    local count = 0
    for listed in rows:gmatch '\n| [^|\n]+ | `([^\n]+)` |' do
      count = count + 1
      local pattern = listed:gsub('%p', '%%%0'):gsub('…', '.*')
      local found = false
      for _, text in ipairs(said) do found = found or text:find(pattern) ~= nil end
      assert.is_true(found, 'no test raises ' .. listed)
    end
    assert.is_true(count > 30)
  end)
end)
