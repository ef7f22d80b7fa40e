--- Traces a model: `forward` runs once without data and becomes a Graph, specialised to the shapes
--- of its arguments and to training or evaluation mode.
local C = require 'nnscaler._C.trace'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local log = require('nnscaler.log').logger 'nnscaler.trace'
local sorted_keys = require('nnscaler.sorted').sorted_keys
local tensor = require 'nnscaler.tensor'

local M = {}

-- Marks by graph.
local anchors_of = setmetatable({}, { __mode = 'k' })

-- By model the graph that was traced before anybody needed it: { key, graph, warnings }.
local ahead = setmetatable({}, { __mode = 'k' })

-- Functions whose results differ from run to run: a graph would keep those of the trace.
local unstable = {
  { table = math, name = 'random', call = 'math.random',
    hint = 'in a model random numbers come from F.dropout or from inputs' },
  { table = os, name = 'time', call = 'os.time',
    hint = 'pass the time in as an argument of forward' },
  { table = os, name = 'clock', call = 'os.clock', hint = 'measure outside the model' },
}

local function forbid_unstable()
  local before = {}
  for i, f in ipairs(unstable) do
    before[i] = f.table[f.name]
    f.table[f.name] = C.refusal(f.call, f.hint)
  end
  return function()
    for i, f in ipairs(unstable) do f.table[f.name] = before[i] end
  end
end

-- Runs `body` and then `restore`, also when body raises an error, which keeps its traceback.
local function finally(restore, body)
  local function keep(e)
    if type(e) == 'table' then
      e.traceback = e.traceback or debug.traceback('', 2)
      return e
    end
    local message, hint = tostring(e), nil
    if message:find 'attempt to compare' and message:find 'userdata' then
      hint = 'compare tensors with operators: x:lt(y), x:le(y), x:gt(y), x:ge(y)'
    end
    return setmetatable({ kind = 'model', message = message, hint = hint,
                          traceback = debug.traceback('', 2) },
      debug.getregistry()['nnscaler.Error'])
  end
  local ok, result, more, third = xpcall(body, keep)
  restore()
  if not ok then error(result, 0) end
  return result, more, third
end

-- What the recorder must know of a model; a plain function is a model without parameters.
local function describe(model, opts)
  if type(model) == 'function' then
    return { model = model, forward = model, name = opts.name or 'function', parameters = {},
             aliases = {}, arg_names = opts.arg_names or {} }
  end
  if type(model) ~= 'table' or type(model.forward) ~= 'function' then
    fail('usage', 'trace.model', ('a %s is not a model; expected a module with a forward function')
      :format(type(model)))
  end
  model:assign_paths()
  local parameters = {}
  for _, entry in ipairs(model:named_parameters()) do
    parameters[#parameters + 1] = { name = entry.name, tensor = entry.param }
  end
  for _, entry in ipairs(model:named_buffers()) do
    parameters[#parameters + 1] = { name = entry.name, tensor = entry.buffer }
  end
  return { model = model, forward = model.forward, name = opts.name or model.class_name or 'model',
           parameters = parameters, aliases = model:tied_names(),
           arg_names = opts.arg_names or model.forward_arg_names or {} }
end

-- Lines of two texts that differ first.
local function first_difference(a, b)
  local next_a, next_b = a:gmatch '[^\n]+', b:gmatch '[^\n]+'
  while true do
    local x, y = next_a(), next_b()
    if x ~= y then return x or '(nothing)', y or '(nothing)' end
    if x == nil then return end
  end
end

local function record(spec, model, training)
  if type(model) == 'function' then return C.record(spec) end
  local modules, before = model:named_modules(), {}
  for i, entry in ipairs(modules) do before[i] = entry.module.training end
  if training then model:train() else model:eval() end
  return finally(function()
    for i, entry in ipairs(modules) do entry.module.training = before[i] end
  end, function() return C.record(spec) end)
end

---@class nnscaler.trace.Opts
---@field training? boolean the training graph (default) or the evaluation graph
---@field name? string of the graph; by default the model's class
---@field arg_names? string[] names of forward's arguments; by default the model's forward_arg_names
---@field loss? boolean false: forward may return anything, and arguments that require gradients
---   get some; by default its first result is the loss
---@field known? string hash of the graph that an earlier trace gave

--- Traces `model(args…)` into a Graph. Only shapes and dtypes of the tensors in `args` matter.
--- The model runs twice, and both runs must give the same graph; once where the first gives the one
--- that is known.
---@param model table|function a module, or a function of tensors
---@param args table arguments of forward; `n` counts them where some are nil
---@param opts? nnscaler.trace.Opts
---@return nnscaler.Graph
---@return string[] warnings operators that the planner does not know, one per line of the model
function M.trace(model, args, opts)
  opts = opts or {}
  local training = opts.training ~= false
  local kept = ahead[model]
  ahead[model] = nil
  if kept and kept.key == M.key(args, training, opts.loss == false) then
    return kept.graph, kept.warnings
  end
  local spec = describe(model, opts)
  spec.training, spec.loss = training, opts.loss ~= false
  spec.args = { n = args.n or #args }
  for i = 1, spec.args.n do spec.args[i] = args[i] end
  local first, warnings, anchors = finally(forbid_unstable(), function()
    return record(spec, model, training)
  end)
  for _, text in ipairs(warnings) do log.warning_once('%s', text) end
  anchors_of[first] = anchors
  if first:hash() == opts.known then return first, warnings end
  local second = finally(forbid_unstable(), function() return record(spec, model, training) end)
  if first:hash() ~= second:hash() then
    local a, b = first_difference(first:text(), second:text())
    fail('model', 'trace.repeat', ('two traces of %s differ, first here:\n  %s\n  %s')
      :format(spec.name, a:gsub('^%s+', ''), (b:gsub('^%s+', ''))),
      'forward must not depend on what changes between calls: counters, random numbers, time')
  end
  return first, warnings
end

--- The marks that nnscaler.anchor left in the model of a traced graph, in program order; `node` is
--- the id of the call that comes next.
---@param graph nnscaler.Graph
---@return { name: string, node: integer }[]
function M.anchors(graph) return anchors_of[graph] or {} end

local function key_of(value, out)
  if tensor.is_tensor(value) then
    out[#out + 1] = value.dtype .. '[' .. table.concat(value.shape, ',') .. ']'
    if out.grads and value.requires_grad then out[#out + 1] = 'grad ' end
  elseif type(value) == 'table' then
    out[#out + 1] = '{'
    for i, k in ipairs(sorted_keys(value)) do
      out[#out + 1] = (i > 1 and ', ' or '') .. tostring(k) .. '='
      key_of(value[k], out)
    end
    out[#out + 1] = '}'
  else
    out[#out + 1] = tostring(value) .. ';'
  end
end

--- What a graph is specialised to: mode, shapes, dtypes and plain values of the arguments, as text.
---@param args table arguments of forward
---@param training boolean
---@param grads? boolean whether it matters which arguments require gradients
---@return string
function M.key(args, training, grads)
  local out = { training and 'training ' or 'evaluation ', grads = grads }
  for i = 1, args.n or #args do key_of(args[i], out) end
  return table.concat(out)
end

--- Traces as `trace` does; the next trace of the model with such arguments is the same graph.
---@param model table
---@param args table
---@param opts? nnscaler.trace.Opts
---@return nnscaler.Graph
function M.ahead(model, args, opts)
  local graph, warnings = M.trace(model, args, opts)
  local training, loss = not opts or opts.training ~= false, not opts or opts.loss ~= false
  ahead[model] = { key = M.key(args, training, not loss), graph = graph, warnings = warnings }
  return graph
end

---@class nnscaler.trace.Cache
local Cache = {}
Cache.__index = Cache

-- What was built of an equal graph: arguments or fields differ in what forward does not read.
function Cache:known(hash)
  for _, key in ipairs(sorted_keys(self.entries)) do
    if self.entries[key].hash == hash then return self.entries[key].value end
  end
end

--- What `build` made of the graph for these arguments; traces at the first use of their shapes.
---@param args table arguments of forward
---@param training boolean
---@return any
function Cache:get(args, training)
  local key = M.key(args, training, self.loss == false)
  if self.version then key = key .. self.version() end
  local entry = self.entries[key]
  self.clock = self.clock + 1
  if entry then
    entry.used = self.clock
    return entry.value
  end
  if self.count >= self.limit then
    local oldest
    for _, k in ipairs(sorted_keys(self.entries)) do
      if not oldest or self.entries[k].used < self.entries[oldest].used then oldest = k end
    end
    self.entries[oldest] = nil
    self.count = self.count - 1
    if not self.full then
      log.warning('%s is called with more than %d shapes of its inputs: from now on the program '
        .. 'used longest ago makes room for the next, and is made again when its shape comes back; '
        .. 'max_programs=N keeps more', self.name, self.limit)
    end
    self.full = true
  end
  local start = base.clock()
  local function make(known)
    return (M.trace(self.model, args, { training = training, name = self.name, known = known,
                                        arg_names = self.arg_names, loss = self.loss }))
  end
  local graph = self.obtain and self.obtain(key, make) or make()
  local hash = graph:hash()
  local value = self:known(hash) or self.build(graph)
  self.entries[key] = { value = value, used = self.clock, hash = hash }
  self.count = self.count + 1
  log[self.full and 'debug' or 'info']('%s specialised to %s in %.0f ms (%d in use)', self.name,
    key, (base.clock() - start) * 1000, self.count)
  return value
end

---@class nnscaler.trace.CacheOpts
---@field build? fun(graph: nnscaler.Graph): any what is kept for each graph; by default itself
---@field obtain? fun(key: string, make: fun(known?: string): nnscaler.Graph): nnscaler.Graph a
---  graph kept before; `make` takes the hash of one that an earlier trace gave
---@field limit? integer specialisations kept, 16 unless told
---@field name? string
---@field arg_names? string[]
---@field loss? boolean as trace takes it
---@field version? fun(): string tells states of the model apart; '' at first

--- Keeps what is made of a model's graphs, one for each shape of its arguments and each mode.
---@param model table
---@param opts? nnscaler.trace.CacheOpts
---@return nnscaler.trace.Cache
function M.cache(model, opts)
  opts = opts or {}
  return setmetatable({
    model = model, build = opts.build or function(graph) return graph end, limit = opts.limit or 16,
    obtain = opts.obtain, version = opts.version,
    name = opts.name or (type(model) == 'table' and model.class_name) or 'model',
    arg_names = opts.arg_names, loss = opts.loss, entries = {}, count = 0, clock = 0,
  }, Cache)
end

--- Whether a model is being traced now.
---@return boolean
function M.tracing() return C.tracing() end

return setmetatable(M, { __call = function(_, ...) return M.trace(...) end })
