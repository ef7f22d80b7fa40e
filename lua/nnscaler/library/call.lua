--- A call of a parallel module inside a hand-written model: its program runs without autograd, and
--- to autograd the whole of it is one function of its inputs and of this rank's parameters.
local C = require 'nnscaler._C.runtime'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'
local tree = require 'nnscaler.runtime.tree'
local tensor = require 'nnscaler.tensor'

-- What a program's function of autograd is made of; found once a program.
local function describe(program)
  local names = program.lowered:input_gradients()
  local about = { inputs = names, parameters = {}, labels = {}, seeds = {} }
  for i, name in ipairs(names) do about.labels[i] = ("input '%s'"):format(name) end
  for _, leaf in ipairs(program.lowered:parameters()) do
    if leaf.addends > 0 then
      about.parameters[#about.parameters + 1] = leaf.name
      about.labels[#about.labels + 1] = ("parameter '%s'"):format(leaf.name)
    end
  end
  for i, path in ipairs(program.lowered:seeds()) do about.seeds[i] = tree.keys(path) end
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

-- `seen` counts the draws of a forward.
local function set_context(program, draws, seen)
  local context, random = program.context, draws.random
  context.seed, context.step, context.micro = random.seed, random.step, random.micro
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

local function connect(state, program, results, flat, saved, draws)
  local engine, about = state.engine, program.about
  local inputs, n = {}, #about.inputs
  for i, name in ipairs(about.inputs) do inputs[i] = flat[name] end
  for i, name in ipairs(about.parameters) do inputs[n + i] = state.by_name[name] end
  local heads = {}
  for i, keys in ipairs(about.seeds) do
    local at, key = place(results, keys)
    heads[i] = at[key]
  end
  local function backward(seeds)
    state:before_backward()
    local gradients = {}
    tree.mirror(engine.gradients, gradients)
    set_context(program, draws)
    local given = C.run(program.stages[0].B, engine.tensors, saved, gradients, seeds,
      program.context)
    local list = {}
    for i, name in ipairs(about.inputs) do list[i] = given[name] end
    for i, name in ipairs(about.parameters) do
      local at, key = tree.place(gradients, name)
      list[n + i] = at[key] or false
    end
    return list
  end
  heads = C.connect(state.label, backward, inputs, about.labels, heads, saved)
  for i, keys in ipairs(about.seeds) do
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

--- Runs the module on arguments of forward and returns what forward returns.
---@param state table of the module (library.module)
---@param training boolean
---@param path string of the module in the model
---@param ... any
---@return any ...
return function(state, training, path, ...)
  local engine, args = state.engine, pack(...)
  local flat, plain = tree.inputs(args, args.n, engine.names), {}
  for name, x in next, flat do plain[name] = x:detach() end
  if engine.sharing then
    engine.sharing:check_samples({ plain }, state.calls)
    state.calls = state.calls + 1
  end
  local program = (training and engine.training or engine.evaluation):get(args, training)
  local draws, seen, saved = draws_of(state, path), {}, {}
  set_context(program, draws, seen)
  local results = pack(C.run(program.stages[0].F, engine.tensors, saved, engine.contents, plain,
    program.context))
  count_draws(state, draws, seen)
  if training then keep_buffers(engine) end
  if door.grad_enabled() then
    if not training then
      local inputs = wanting(state, flat)
      if #inputs > 0 then refuse_backward(state, results, inputs) end
    elseif program.stages[0].B then
      program.about = program.about or describe(program)
      if #program.about.seeds > 0 then
        connect(state, program, results, flat, saved, draws)
      end
    end
  end
  return unpack(results, 1, results.n)
end
