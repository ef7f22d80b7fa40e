--- Module, the base of every model: named parameters, buffers and submodules in the order in which
--- they were assigned, and calls that tell the door where in the model they are.
---
---     local Block = nn.class 'Block'
---     function Block:init(width) self.fc = nn.Linear(width, width) end
---     function Block:forward(x) return x + self.fc(x) end
---     local block = Block(8)
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local kinds = require 'nnscaler.nn.kinds'

---@class nnscaler.nn.Module
---@field training boolean whether dropout and batch statistics are on; set by train() and eval()
---@field path string|nil place in the model, "" for the root; set by assign_paths()
local Module = {}
Module.class_name = 'Module'

-- The root of the running forward, whose tree names the modules that it meets.
local root

-- Called for fields that did not exist: modules, parameters and buffers keep their order.
local function register(self, key, value)
  if kinds.of(value) then
    local names = rawget(self, '_names')
    names[#names + 1] = key
  end
  rawset(self, key, value)
end

-- After a forward, whatever it left: back to the depth before, results passed on.
local function leave(depth, ...)
  door.reset_modules(depth)
  return ...
end

local function run(self, depth, ...)
  if not rawget(self, 'path') then
    root:assign_paths()
    if not rawget(self, 'path') then
      fail('model', 'nn.call', ('a %s is called that the model does not hold'):format(
        self.class_name), 'assign it to a field of its module, or put several in a nn.ModuleList')
    end
  end
  door.push_module(self.path)
  return leave(depth, self:forward(...))
end

local function as_error(problem)
  local traceback = debug.traceback('', 2):gsub('^\n', '')
  if type(problem) ~= 'table' then
    problem = setmetatable({ kind = 'model', message = tostring(problem) },
      debug.getregistry()['nnscaler.Error'])
  end
  problem.traceback = problem.traceback or traceback
  return problem
end

local function finish(before, ok, ...)
  root = before
  if ok then return ... end
  door.reset_modules(0)
  error((...), 0)
end

local function call(self, ...)
  local depth = door.module_depth()
  if depth > 0 then return run(self, depth, ...) end
  local before = root
  root = self
  door.reset_ordinals()
  if not rawget(self, 'path') then self:assign_paths() end
  return finish(before, xpcall(run, as_error, self, 0, ...))
end

local function show(self) return ('%s(%s)'):format(self.class_name, self.path or '') end

--- Makes a class of modules. Calling the class makes an instance and runs its `init` with the
--- arguments of the call.
---@param name string shown in messages
---@param parent? table a class to extend; Module by default
---@return table class
function Module.class(name, parent)
  parent = parent or Module
  if parent ~= Module and not rawget(parent, '_meta') then
    fail('model', 'nn.class', ("the parent of '%s' is not a class that nn.class made"):format(name),
      'a parallel class cannot be extended: extend the class that it was made of')
  end
  local class = setmetatable({ class_name = name, super = parent }, {
    __index = parent,
    __call = function(class, ...)
      local self = setmetatable({ _names = {}, training = true }, class._meta)
      if class.init then class.init(self, ...) end
      return self
    end,
  })
  class._meta = { __index = class, __newindex = register, __call = call, __tostring = show,
    is_module = true }
  return class
end

--- What a class computes; every class has its own.
function Module:forward()
  fail('model', 'nn.forward', ('%s has no forward'):format(self.class_name),
    'define `function ' .. self.class_name .. ':forward(x) … end`')
end

--- Whether the module is an instance of a class or of one that extends it.
---@param class table
---@return boolean
function Module:is(class)
  local own = getmetatable(self).__index
  while own do
    if own == class then return true end
    own = rawget(own, 'super')
  end
  return false
end

--- Adds a tensor that belongs to the model without being trained. `value` is a tensor, a function
--- that computes one when the model is loaded, or { shape =, init = } as nn.Parameter takes.
---@param name string
---@param value nnscaler.Tensor|table|fun(): nnscaler.Tensor
---@param options? { persistent?: boolean, shape?: integer[], dtype?: string } a function with
---   `shape` given (and `dtype`, else float32) is not run to find it out
function Module:register_buffer(name, value, options)
  self[name] = kinds.buffer(name, value, options or {})
end

--- Switches this module and all below it to training.
---@param mode? boolean false: to evaluation
---@return nnscaler.nn.Module self
function Module:train(mode)
  for _, entry in ipairs(self:named_modules()) do entry.module.training = mode ~= false end
  return self
end

--- Switches this module and all below it to evaluation.
---@return nnscaler.nn.Module self
function Module:eval() return self:train(false) end

--- Calls f with every submodule, children before their parents, last with the module itself.
---@param f fun(module: nnscaler.nn.Module)
---@return nnscaler.nn.Module self
function Module:apply(f)
  local modules = self:named_modules()
  for i = #modules, 1, -1 do f(modules[i].module) end
  return self
end

for _, part in ipairs { 'nnscaler.nn.tree', 'nnscaler.nn.state' } do require(part)(Module) end

return Module
