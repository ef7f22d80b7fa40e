--- What tensors do beside operators called by name: arithmetic, indexing, printing. Returns a
--- function that installs it; called once for every Lua machine, when tensors are first opened.

---@param C table the module nnscaler._C.tensor
return function(C)
  local meta, methods = C.metatable, C.methods
  local aten = setmetatable({}, {
    __index = function(t, name)
      local call = C.operator('aten::' .. name)
      rawset(t, name, call)
      return call
    end,
  })
  local function is_number(x) return type(x) == 'number' end

  function meta.__add(a, b)
    if is_number(a) then return aten.add(b, a) end
    return aten.add(a, b)
  end
  function meta.__sub(a, b)
    if is_number(a) then return aten.rsub(b, a) end
    return aten.sub(a, b)
  end
  function meta.__mul(a, b)
    if is_number(a) then return aten.mul(b, a) end
    return aten.mul(a, b)
  end
  function meta.__div(a, b)
    if is_number(a) then return aten.mul(aten.reciprocal(b), a) end
    return aten.div(a, b)
  end
  function meta.__mod(a, b) return aten.remainder(a, b) end
  function meta.__pow(a, b) return aten.pow(a, b) end
  function meta.__unm(a) return aten.neg(a) end
  meta.__lt, meta.__le = methods._refuse_order, methods._refuse_order
  meta.__len = methods._refuse_length

  local index = require 'nnscaler.tensor.index' (C, aten)
  methods._at, methods._put = index.at, index.put
  meta.__tostring = require 'nnscaler.tensor.print' (C, aten)

  --- Moves to a dtype, a device, both, or to what another tensor has.
  function methods.to(x, a, b, options)
    if type(a) == 'string' then
      if type(b) == 'table' then b, options = nil, b end
      if not C.is_dtype(a) then
        return aten.to(x, { device = a, dtype = b, copy = options and options.copy,
          non_blocking = options and options.non_blocking })
      elseif type(b) == 'string' then
        return aten.to(x, b, a, options)
      end
      return aten.to(x, a, options)
    end
    return aten.to(x, a, b)
  end
  for _, entry in ipairs {
    { 'float', 'float32' }, { 'double', 'float64' }, { 'half', 'float16' }, { 'long', 'int64' },
    { 'bfloat16', 'bfloat16' }, { 'int', 'int32' }, { 'bool', 'bool' },
  } do
    methods[entry[1]] = function(x) return aten.to(x, entry[2]) end
  end

  --- The whole of a parameter or buffer of which this rank holds a part (`data`). In a run of
  --- several ranks a collective: every rank calls it, in the same order.
  function methods.full(x)
    if x.kind ~= 'parameter' then return x end
    return C.full_of and C.full_of(x) or x.data
  end
  function methods.cpu(x) return aten.to(x, { device = 'cpu' }) end
  function methods.cuda(x) return aten.to(x, { device = 'cuda' }) end
end
