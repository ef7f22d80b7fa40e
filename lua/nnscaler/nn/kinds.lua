--- Tells modules, parameters and buffers from plain values, and makes parameters and buffers.
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'

local M = {}

--- Returns 'module', 'parameter' or 'buffer', or nil for any other value.
---@param value any
---@return string|nil
function M.of(value)
  local kind = type(value)
  if kind == 'table' then
    local meta = getmetatable(value)
    return meta and type(meta) == 'table' and rawget(meta, 'is_module') and 'module' or nil
  elseif kind == 'userdata' and door.is_tensor(value) and value.kind == 'parameter' then
    return value.is_buffer and 'buffer' or 'parameter'
  end
  return nil
end

--- The key under which a module holds what has this name. Names that a module uses itself get keys
--- of their own: a model read from a file may have a parameter 'path' or a module 'train'.
---@param module nnscaler.nn.Module
---@param name string
---@return string|{ name: string }
function M.key(module, name)
  for key in next, module do
    if type(key) == 'table' and key.name == name then return key end
  end
  local held = rawget(module, name)
  if held == nil and module[name] == nil and name ~= 'path' or M.of(held) then return name end
  return { name = name }
end

local function check_shape(area, shape)
  if type(shape) ~= 'table' then
    fail('usage', area, ('shape is a %s; expected a list of sizes'):format(type(shape)))
  end
  for i, size in ipairs(shape) do
    if type(size) ~= 'number' or size < 0 or size % 1 ~= 0 then
      fail('usage', area, ('size %d of the shape is %s; expected an integer ≥ 0'):format(i - 1,
        tostring(size)))
    end
  end
end

--- Makes a parameter: a shape and a recipe for its values, which exist once the model is loaded;
--- or a tensor of values at hand.
---@param what nnscaler.Tensor|{ shape: integer[], dtype?: string, init?: table,
---   requires_grad?: boolean } `init` is what a function of nn.init returns; zeros by default
---@return nnscaler.Tensor
function M.parameter(what)
  if type(what) == 'userdata' then return door.parameter { data = what } end
  if type(what) ~= 'table' then
    fail('usage', 'nn.Parameter', ('a %s; expected { shape =, init = } or a tensor')
      :format(type(what)))
  end
  check_shape('nn.Parameter', what.shape)
  return door.parameter {
    shape = what.shape, dtype = what.dtype or 'float32',
    init = what.init or { kind = 'constant', value = 0 },
    requires_grad = what.requires_grad,
  }
end

---@param name string
---@param value any
---@param options table
---@return nnscaler.Tensor
function M.buffer(name, value, options)
  local persistent = options.persistent ~= false
  if type(value) == 'userdata' then
    return door.parameter { data = value, buffer = true, persistent = persistent,
      requires_grad = false }
  end
  local shape, dtype, init = options.shape, options.dtype, nil
  if type(value) == 'function' then
    init = { kind = 'buffer', compute = value }
    if not shape then
      local sample = value()
      shape, dtype = sample.shape, sample.dtype
    end
  elseif type(value) == 'table' then
    shape, dtype, init = value.shape, value.dtype, value.init
  else
    fail('usage', 'nn.register_buffer', ("buffer '%s' is a %s; expected a tensor, a function or "
      .. '{ shape =, init = }'):format(name, type(value)))
  end
  check_shape('nn.register_buffer', shape)
  return door.parameter {
    shape = shape, dtype = dtype or 'float32', init = init or { kind = 'constant', value = 0 },
    requires_grad = false, buffer = true, persistent = persistent,
  }
end

return M
