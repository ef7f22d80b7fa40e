--- A call of a parallel module inside a hand-written model: its program runs without autograd, and
--- to autograd the whole of it is one function of its inputs and of this rank's parameters.
local C = require 'nnscaler._C.runtime'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.groups'
local sorted = require 'nnscaler.sorted'
local tree = require 'nnscaler.runtime.tree'
local tensor = require 'nnscaler.tensor'

-- What a program's function of autograd is made of; found once per program.
local function describe(state, program, args, results, training)
  local about = state.ends and state.ends:describe(program, args, results, training)
    or { inputs = program.lowered:input_gradients(), seeds = program.lowered:seeds() }
  about.parameters, about.labels, about.places = {}, {}, {}
  for i, name in ipairs(about.inputs) do about.labels[i] = ("input '%s'"):format(name) end
  for _, leaf in ipairs(program.lowered:parameters()) do
    if leaf.addends > 0 then
      about.parameters[#about.parameters + 1] = leaf.name
      about.labels[#about.labels + 1] = ("parameter '%s'"):format(leaf.name)
    end
  end
  for i, path in ipairs(about.seeds) do about.places[i] = tree.keys(path) end
  return about
end

-- The table and key under which nested results hold what a list of keys names.
local function place(results, keys)
  for i = 1, #keys - 1 do results = results[keys[i]] end
  return results, keys[#keys]
end

-- What draws of a call depend on: counters, the module's path, and how many draws its earlier calls
-- in the same forward of the model made, by place.
local function draws_of(state, path)
  if door.next_ordinal 'nnscaler::parallel' == 0 then state.drawn = {} end
  return { random = door.get_random(), path = path, before = state.drawn }
end

-- For micro-batch k of a call; `seen` counts its draws.
local function set_context(state, program, draws, k, seen)
  local context, random, sharing = program.context, draws.random, state.engine.sharing
  context.seed, context.step = random.seed, random.step
  context.micro = random.micro + (k - 1) * (sharing and sharing.units or 1)
  context.tag = (k - 1) * program.tags
  context.at, context.before, context.seen = draws.path, draws.before, seen
end

local function count_draws(state, draws, seen)
  if not next(seen) then return end
  state.drawn = {}
  for _, counts in ipairs { draws.before, seen } do
    for at, n in next, counts do state.drawn[at] = (state.drawn[at] or 0) + n end
  end
end

-- New contents of buffers hold from now on, as in a module that runs by itself; over scale units
-- they are put together when gradients are. Backward may still read the tensors they came in, so
-- those are not released.
local function keep_buffers(engine)
  local contents = engine.buffer_contents
  contents:turn(true)
  if not contents.across then contents:commit(true) end
end

-- Backward of all micro-batches: gradients of inputs and of parameters.
local function run_backward(state, program, pass, seeds)
  local engine, about, gradients, given = state.engine, program.about, {}, {}
  tree.mirror(engine.gradients, gradients)
  local list = state.ends and state.ends:seeds(about, seeds) or { seeds }
  local _, stage = next(program.stages)
  for k = 1, stage.B and #list or 0 do
    set_context(state, program, pass.draws, k)
    given[k] = C.run(stage.B, engine.tensors, pass.saved[k], gradients, list[k], program.context)
  end
  groups.flush()
  local out = state.ends and state.ends:gradients(about, given, pass.batches) or {}
  for i, name in ipairs(about.inputs) do out[i] = out[i] or given[1][name] end
  for i, name in ipairs(about.parameters) do
    local at, key = tree.place(gradients, name)
    out[#about.inputs + i] = at[key] or false
  end
  return out
end

local function connect(state, program, results, flat, pass)
  local about, inputs, heads = program.about, {}, {}
  for i, name in ipairs(about.inputs) do inputs[i] = flat[name] end
  for i, name in ipairs(about.parameters) do
    inputs[#about.inputs + i] = state.by_name[name]
  end
  for i, keys in ipairs(about.places) do
    local at, key = place(results, keys)
    heads[i] = at[key]
  end
  local function backward(seeds)
    state:before_backward()
    return run_backward(state, program, pass, seeds)
  end
  heads = C.connect(state.label, backward, inputs, about.labels, heads, pass.saved)
  for i, keys in ipairs(about.places) do
    local at, key = place(results, keys)
    at[key] = heads[i]
  end
end

-- Every floating tensor of nested results gets a history that refuses backward.
local function refuse_backward(state, results, inputs)
  local function refuse()
    fail('usage', 'library.backward', ('%s ran in evaluation mode, which has no backward'):format(
      state.label), 'call train() before forward, or compute inside nnscaler.tensor.no_grad')
  end
  local function walk(value)
    for key, item in sorted.sorted_pairs(value) do
      if type(item) == 'table' then
        walk(item)
      elseif tensor.is_tensor(item) and item:is_floating_point() then
        value[key] = C.connect(state.label, refuse, inputs, inputs.labels, { item }, {})[1]
      end
    end
  end
  walk(results)
end

-- Inputs and parameters that want gradients.
local function wanting(state, flat)
  local list = { labels = {} }
  for name, x in sorted.sorted_pairs(flat) do
    if x.requires_grad then list[#list + 1], list.labels[#list + 1] = x, name end
  end
  for _, parameter in ipairs(state.engine.parameters) do
    if parameter.data.requires_grad then
      list[#list + 1], list.labels[#list + 1] = parameter.data, parameter.name
    end
  end
  return list
end

local function pack(...) return { n = select('#', ...), ... } end

-- What the program takes of the arguments: as they are, or of a wrapped module as its ends say.
local function enter(state, args, flat)
  if state.ends then return state.ends:enter(args, flat) end
  local inputs = {}
  for name, x in next, flat do inputs[name] = x:detach() end
  if state.engine.sharing then
    state.engine.sharing:check_samples({ inputs }, state.calls)
    state.calls = state.calls + 1
  end
  return { { args = args, inputs = inputs } }
end

-- Forward of all micro-batches: their results.
local function run_forward(state, program, pass, training)
  local engine, outputs = state.engine, {}
  local _, stage = next(program.stages)
  for k, batch in ipairs(pass.batches) do
    local seen = {}
    pass.saved[k] = {}
    set_context(state, program, pass.draws, k, seen)
    outputs[k] = pack(C.run(stage.F, engine.tensors, pass.saved[k], engine.contents, batch.inputs,
      program.context))
    if training then keep_buffers(engine) end
    if k == #pass.batches then count_draws(state, pass.draws, seen) end
  end
  groups.flush()
  return outputs
end

--- Runs the module on arguments of forward and returns what forward returns.
---@param state table of the module (library.module)
---@param training boolean
---@param path string of the module in the model
---@param ... any
---@return any ...
return function(state, training, path, ...)
  local engine, args = state.engine, pack(...)
  local flat = tree.inputs(args, args.n, engine.source.arg_names)
  local pass = { batches = enter(state, args, flat), saved = {}, draws = draws_of(state, path) }
  local given = pass.batches[1].args
  local program = (training and engine.training or engine.evaluation):get(given, training)
  local outputs = run_forward(state, program, pass, training)
  program.about = program.about or describe(state, program, given, outputs[1], training)
  local results = state.ends and state.ends:leave(program.about, outputs) or outputs[1]
  if door.grad_enabled() then
    if not training then
      local inputs = wanting(state, flat)
      if #inputs > 0 then refuse_backward(state, results, inputs) end
    elseif #program.about.seeds > 0 then
      connect(state, program, results, flat, pass)
    end
  end
  return unpack(results, 1, results.n)
end
