--- The part of Module that deals with values: drawing them, moving them, taking them out and in.
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local function show(shape) return '[' .. table.concat(shape, ', ') .. ']' end

-- Tensors that state_dict holds: parameters, then persistent buffers, { name =, tensor = }.
local function saved(module)
  local list = {}
  for _, entry in ipairs(module:named_parameters()) do
    list[#list + 1] = { name = entry.name, tensor = entry.param, file_shape = entry.file_shape }
  end
  for _, entry in ipairs(module:named_buffers()) do
    if entry.persistent then list[#list + 1] = { name = entry.name, tensor = entry.buffer } end
  end
  return list
end

local function everything(module)
  local list = module:parameters()
  for _, entry in ipairs(module:named_buffers()) do list[#list + 1] = entry.buffer end
  return list
end

-- Name → tensor of what load_state_dict was given: a table by name or a list of { name, tensor }.
local function by_name(state)
  local map = {}
  for key, value in sorted.sorted_pairs(state) do
    if type(key) == 'number' then
      map[value.name] = value.tensor or value.data
    else
      map[key] = value
    end
  end
  return map
end

---@param Module table
return function(Module)
  --- Draws the values of all parameters and buffers that have none yet: a pure function of the
  --- seed and their names below this module.
  ---@param seed integer
  ---@param device? string cpu by default
  ---@return nnscaler.nn.Module self
  function Module:materialize(seed, device)
    if not rawget(self, 'path') then self:assign_paths() end
    for _, tensor in ipairs(everything(self)) do
      if not tensor.materialized then tensor:materialize(seed, device or 'cpu') end
    end
    return self
  end

  --- Changes the dtype of all floating parameters and buffers, or moves what has values.
  ---@param where string a dtype ('float64') or a device ('cuda:0')
  ---@return nnscaler.nn.Module self
  function Module:to(where)
    local dtypes = { float64 = true, float32 = true, bfloat16 = true, float16 = true }
    for _, tensor in ipairs(everything(self)) do
      if dtypes[where] then
        if tensor:is_floating_point() then tensor.dtype = where end
      elseif tensor.materialized then
        tensor.data = tensor.data:to(where)
      end
    end
    return self
  end

  --- Whether all parameters of this module and below take part in training.
  ---@param flag? boolean true by default
  ---@return nnscaler.nn.Module self
  function Module:requires_grad_(flag)
    for _, tensor in ipairs(self:parameters()) do tensor.requires_grad = flag ~= false end
    return self
  end

  --- Forgets all gradients.
  function Module:zero_grad()
    for _, tensor in ipairs(self:parameters()) do
      if tensor.materialized then tensor.grad = nil end
    end
  end

  --- Parameters and persistent buffers by name, tied ones once. The tensors are the model's own.
  ---@return { name: string, tensor: nnscaler.Tensor }[]
  function Module:state_dict() return saved(self) end

  --- Takes values from a table by name, or from a list as state_dict returns, in the model's shapes
  --- or those of files. All that is wrong is named in one error, and then nothing is changed.
  ---@param state table<string, nnscaler.Tensor>|{ name: string, tensor: nnscaler.Tensor }[]
  ---@return nnscaler.nn.Module self
  function Module:load_state_dict(state)
    local given, aliases, wrong, found, known = by_name(state), {}, {}, {}, {}
    for _, tied in ipairs(self:tied_names()) do
      aliases[tied.name] = aliases[tied.name] or {}
      table.insert(aliases[tied.name], tied.alias)
    end
    for i, entry in ipairs(saved(self)) do
      local name, value = entry.name, given[entry.name]
      known[name] = true
      for _, alias in ipairs(aliases[name] or {}) do
        known[alias] = true
        value = value or given[alias]
      end
      if value and entry.file_shape and show(value.shape) == show(entry.file_shape) then
        value = value:reshape(entry.tensor.shape)
      end
      if not value then
        wrong[#wrong + 1] = ("'%s' is missing"):format(name)
      elseif show(value.shape) ~= show(entry.tensor.shape) then
        wrong[#wrong + 1] = ("'%s' has shape %s; expected %s"):format(name, show(value.shape),
          show(entry.tensor.shape))
      elseif value.dtype ~= entry.tensor.dtype then
        wrong[#wrong + 1] = ("'%s' is %s; expected %s"):format(name, value.dtype,
          entry.tensor.dtype)
      end
      found[i] = { tensor = entry.tensor, value = value }
    end
    for name in sorted.sorted_pairs(given) do
      if not known[name] then
        wrong[#wrong + 1] = ("'%s' is not in the model"):format(tostring(name))
      end
    end
    if #wrong > 0 then
      fail('state', 'nn.load_state_dict', ('%d of the tensors do not fit %s: %s'):format(#wrong,
        self.class_name, table.concat(wrong, '; ')))
    end
    for _, entry in ipairs(found) do
      entry.tensor.data = entry.value:detach():clone():to(entry.tensor.device)
    end
    return self
  end
end
