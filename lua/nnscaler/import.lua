--- Models that PyTorch exported: `nnscaler.import 'model.pt2'` gives a module whose forward makes
--- the calls that torch.export wrote. Parameters, buffers and modules have PyTorch's names and
--- values, so policies, checkpoints and optimizers treat it as a model written in Lua:
---
---     local model = nnscaler.import 'gpt.pt2'
---     local loss = model(tokens, labels)
---
--- No Python runs, and nothing of the file is executed or unpickled.
local C = require 'nnscaler._C.trace'
local Module = require 'nnscaler.nn.module'
local fail = require 'nnscaler.fail'
local kinds = require 'nnscaler.nn.kinds'
local tensor = require 'nnscaler.tensor'

-- Elements of a constant that a graph holds itself; larger ones become buffers that no file keeps.
local small = 4096

--- A module of the exported model: holds its parameters, and is called by the whole alone.
---@class nnscaler.nn.ImportedPart : nnscaler.nn.Module
local Part = Module.class 'ImportedPart'

function Part:forward()
  fail('model', 'import.call', ("module '%s' of an exported program is called; expected the whole "
    .. 'program'):format(self.path), 'export the part that is to be called by itself')
end

---@class nnscaler.nn.Imported : nnscaler.nn.Module
---@field forward_arg_names string[] names of the exported forward's arguments
local Imported = Module.class 'Imported'

-- Where the tensor with this name belongs: its module, made where it is missing, and its field.
local function place_of(root, name)
  local module, field = root, name
  for part in name:gmatch '([^.]*)%.' do
    local key = kinds.key(module, part)
    if not rawget(module, key) then module[key] = Part() end
    module = rawget(module, key)
    field = field:sub(#part + 2)
  end
  return module, kinds.key(module, field)
end

local function count(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

-- The parameter or buffer of an entry, whose values are read when the model is materialised.
local function leaf_of(program, entry)
  local function values() return program:values(entry.name) end
  local init = { kind = 'buffer', compute = values }
  if entry.role == 'parameter' then
    return kinds.parameter { shape = entry.shape, dtype = entry.dtype, init = init,
      requires_grad = entry.requires_grad }
  end
  return kinds.buffer(entry.name, { shape = entry.shape, dtype = entry.dtype, init = init },
    { persistent = entry.role == 'buffer' and entry.persistent })
end

-- The leaf of an entry, which the evaluation variant shares with the program that trains.
local function leaf_at(module, key, program, entry)
  local held = rawget(module, key)
  if not held then return leaf_of(program, entry) end
  if held.dtype ~= entry.dtype
    or table.concat(held.shape, ',') ~= table.concat(entry.shape, ',') then
    fail('model', 'import.weights', ("'%s' is %s[%s] in training and %s[%s] in evaluation; "
      .. 'expected variants of one model')
      :format(entry.name, held.dtype, table.concat(held.shape, ', '),
      entry.dtype, table.concat(entry.shape, ', ')))
  end
  return held
end

-- Makes the tree of modules; returns for each input of the program what finds its value.
local function build(self, program, about)
  local sources, known = {}, {}
  for i, entry in ipairs(about.inputs) do
    if entry.role == 'parameter' or entry.role == 'buffer'
      or entry.role == 'constant' and count(entry.shape) > small then
      local module, key = place_of(self, entry.name)
      local tied = known[entry.record]
      if tied and tied.place ~= entry.place then
        fail('model', 'import.weights', ("'%s' and '%s' share memory in different shapes; expected "
          .. 'tensors of their own, or one'):format(tied.name, entry.name),
          'clone one of them before the export')
      end
      known[entry.record] = tied or { place = entry.place, name = entry.name,
        leaf = leaf_at(module, key, program, entry) }
      module[key] = known[entry.record].leaf
      sources[i] = function() return rawget(module, key) end
    elseif entry.role == 'constant' then
      local value = program:values(entry.name)
      sources[i] = function(dtypes)
        if dtypes and value.dtype == dtypes.from then value = value:to(dtypes.to) end
        return value
      end
    end
  end
  return sources
end

-- The floating dtype of the exported parameters, or nil where they have several or none.
local function dtype_of(about)
  local dtype
  for _, entry in ipairs(about.inputs) do
    if entry.role == 'parameter' then
      if dtype and dtype ~= entry.dtype then return nil end
      dtype = entry.dtype
    end
  end
  return dtype
end

local function open(self, path)
  local program = C.open_program(path)
  local about = program:about()
  return { path = path, program = program, about = about, sources = build(self, program, about),
    dtype = dtype_of(about) }
end

---@param path string of a file that torch.export.save wrote
---@param evaluation? string of one that holds the same model in evaluation mode
function Imported:init(path, evaluation)
  local training = open(self, path)
  local count_before = #self:named_parameters()
  local variants = { training = training, evaluation = evaluation and open(self, evaluation) }
  if #self:named_parameters() ~= count_before then
    fail('model', 'import.weights', ("'%s' has parameters that '%s' lacks; expected variants of "
      .. 'one model'):format(evaluation, path))
  end
  rawset(self, 'class_name', training.about.name)
  rawset(self, 'forward_arg_names', training.about.argument_names)
  -- Out of the way of the walk over the tree.
  rawset(self, '_variants', setmetatable(variants, {}))
end

-- The program of the module's mode.
local function variant(self)
  local own = rawget(self, '_variants')
  if self.training then return own.training end
  if own.evaluation then return own.evaluation end
  local trains = own.training.about.trains
  if trains then
    fail('model', 'import.mode', ("'%s' was exported in training mode: %s; expected an evaluation "
      .. 'variant'):format(own.training.path, trains), 'export the model after model.eval() too, '
      .. "and give both: nnscaler.import { 'train.pt2', evaluation = 'eval.pt2' }")
  end
  return own.training
end

-- Where the model was given a wider dtype than it was exported with: from which to which.
local function widening(self, own)
  local from = own.dtype
  local first = self:parameters()[1]
  local to = first and first.dtype
  if from and to ~= from and to == 'float64' then return { from = from, to = to } end
end

local function spell(entry)
  local sizes = {}
  for d, size in ipairs(entry.sizes) do sizes[d] = size < 0 and 'any' or tostring(size) end
  return ('%s[%s]'):format(entry.dtype, table.concat(sizes, ', '))
end

local function show(value)
  if tensor.is_tensor(value) then
    return ('%s[%s]'):format(value.dtype, table.concat(value.shape, ', '))
  end
  return type(value) == 'string' and ("'%s'"):format(value) or tostring(value)
end

local function is_floating(dtype) return dtype:find 'float' ~= nil end

-- An argument against what was exported.
local function check(name, entry, value)
  if entry.role == 'number' or not entry.dtype then
    if entry.role == 'number' and value ~= entry.value then
      fail('model', 'import.argument', ("argument '%s' is %s; the program was exported for %s")
        :format(name, show(value), show(entry.value)), 'export the model again with this value')
    end
    return
  end
  local fits = tensor.is_tensor(value) and #value.shape == #entry.sizes
    and (value.dtype == entry.dtype or is_floating(value.dtype) and is_floating(entry.dtype))
  for d, size in ipairs(entry.sizes) do
    fits = fits and (size < 0 or value.shape[d] == size)
  end
  if not fits then
    fail('model', 'import.argument', ("argument '%s' is %s; the program was exported for %s")
      :format(name, show(value), spell(entry)),
      'sizes that may vary are given to torch.export.export as dynamic_shapes')
  end
end

-- Calls visit(name, value) for the leaves of an argument, in the order of the program.
local function flatten(tree, value, name, visit)
  if tree.kind == 'leaf' then return visit(name, value) end
  if tree.kind == 'nothing' then return end
  if type(value) ~= 'table' then
    fail('model', 'import.argument', ("argument '%s' is %s; the program was exported for a table "
      .. 'of %d'):format(name, show(value), #tree))
  end
  for i, child in ipairs(tree) do
    local key = tree.keys and tree.keys[i] or i
    flatten(child, value[key], ('%s.%s'):format(name, key), visit)
  end
end

-- A result of the flat list, from `at` on; returns the place after it too.
local function unflatten(tree, list, at)
  if tree.kind == 'leaf' then return list[at], at + 1 end
  if tree.kind == 'nothing' then return nil, at end
  local value = {}
  for i, child in ipairs(tree) do
    value[tree.keys and tree.keys[i] or i], at = unflatten(child, list, at)
  end
  return value, at
end

-- The arguments in their order; a sample, one table with a field for each, stands for all of them.
local function spread(names, ...)
  local sample = ...
  if select('#', ...) ~= 1 or type(sample) ~= 'table' or #names == 0 then
    return { ... }, select('#', ...)
  end
  local list = {}
  for i, name in ipairs(names) do
    if sample[name] == nil then return { sample }, 1 end
    list[i] = sample[name]
  end
  return list, #names
end

-- Values of the program's inputs.
local function gather(self, own, dtypes, ...)
  local values = {}
  local given, n = spread(self.forward_arg_names, ...)
  for i in ipairs(own.about.inputs) do
    if own.sources[i] then values[i] = own.sources[i](dtypes) end
  end
  local next_input = 0
  local function visit(name, value)
    repeat next_input = next_input + 1 until not own.sources[next_input]
    check(name, own.about.inputs[next_input], value)
    values[next_input] = value
  end
  local positional, named = own.about.arguments[1], own.about.arguments[2]
  local expected = #positional + #named
  if n > expected then
    fail('model', 'import.argument', ('%d arguments are given; the program was exported with %d')
      :format(n, expected))
  end
  local k = 0
  for _, tree in ipairs { positional, named } do
    for _, child in ipairs(tree) do
      k = k + 1
      flatten(child, given[k], self.forward_arg_names[k] or tostring(k), visit)
    end
  end
  return values
end

--- Makes the calls of the program.
---@param ... any the arguments of the exported forward, those by keyword behind the others; or one
---  table that has them by name
---@return any ... what it returned: several values for a tuple
function Imported:forward(...)
  local own = variant(self)
  local dtypes = widening(self, own)
  local values = gather(self, own, dtypes, ...)
  local outputs = own.program:run(values, self.path, dtypes and dtypes.from, dtypes and dtypes.to)
  local buffers = {}
  for i, entry in ipairs(own.about.inputs) do
    if entry.role == 'buffer' then buffers[entry.name] = own.sources[i]() end
  end
  for _, update in ipairs(own.about.updates) do
    local buffer, content = buffers[update.buffer], outputs[update.output]
    if not rawequal(buffer, content) then buffer:copy_(content) end
  end
  local flat = {}
  for i, output in ipairs(own.about.results) do flat[i] = outputs[output] end
  local tree = own.about.returned
  local value = unflatten(tree, flat, 1)
  if tree.kind == 'list' then return unpack(value, 1, #tree) end
  return value
end

--- Reads an exported program as a module.
---@param what string|{ [1]?: string, path?: string, evaluation?: string } path of a file that
---  torch.export.save wrote; `evaluation`: of the same model in evaluation mode
---@return nnscaler.nn.Imported
return function(what)
  local path, evaluation = what, nil
  if type(what) == 'table' then path, evaluation = what.path or what[1], what.evaluation end
  if type(path) ~= 'string' then
    fail('usage', 'import.file', ('the path is a %s; expected a .pt2 file'):format(type(path)))
  end
  return Imported(path, evaluation)
end
