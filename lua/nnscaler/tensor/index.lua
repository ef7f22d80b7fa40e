--- Indexing as x[i] and x[{…}], read and assigned. Counts from 0. In a list, one entry a dimension:
---   2, -1          that element; the dimension goes
---   '1:5', '::2'   a range as Python writes it (also T.slice(1, 5)); ':' is the whole dimension
---   { 0, 2, 5 }    those elements        an int64 tensor likewise, a bool tensor picks where true
---   'new'          a new dimension of size 1        '...'  as many whole dimensions as fit
local fail = require 'nnscaler.fail'

local Range = {}

-- '1:5:2' → 1, 5, 2 (nil where left out), or nothing if it is not a range.
local function parse_range(text)
  local start, stop, step = text:match('^%s*(%-?%d*)%s*:%s*(%-?%d*)%s*:?%s*(%-?%d*)%s*$')
  if not start then return nil end
  return { tonumber(start), tonumber(stop), tonumber(step) }
end

return function(C, aten)
  local is_tensor = C.is_tensor

  -- How many dimensions of x an entry uses up.
  local function consumed(entry)
    if entry == 'new' or entry == '...' then return 0 end
    if is_tensor(entry) and entry.dtype == 'bool' then return entry:dim() end
    return 1
  end

  -- Applies numbers, ranges and new dimensions; lists and tensors are left for aten.index.
  -- Returns the view, and for each leading dimension of it a tensor or false (nil: no tensors).
  local function basic(x, entries)
    local left = x:dim()
    for _, entry in ipairs(entries) do left = left - consumed(entry) end
    if left < 0 then
      fail('model', 'tensor.index', ('%d indices for a tensor of shape [%s]; expected at most %d')
        :format(x:dim() - left, table.concat(x.shape, ', '), x:dim()))
    end
    local dim, tensors, any = 0, {}, false
    local function keep(n)
      for _ = 1, n do
        dim = dim + 1
        tensors[#tensors + 1] = false
      end
    end
    for i, entry in ipairs(entries) do
      local kind = type(entry)
      if kind == 'number' then
        x = aten.select(x, dim, entry)
      elseif entry == '...' then
        keep(left)
        left = 0
      elseif entry == 'new' then
        x = aten.unsqueeze(x, dim)
        keep(1)
      elseif is_tensor(entry) then
        tensors[#tensors + 1] = entry
        dim = dim + consumed(entry)
        any = true
      elseif kind == 'table' and getmetatable(entry) ~= Range then
        tensors[#tensors + 1] = C.from_table(entry, 'int64', x.device)
        dim = dim + 1
        any = true
      else
        local range = kind == 'table' and entry or kind == 'string' and parse_range(entry)
        if not range then
          fail('model', 'tensor.index', ('entry %d is %s; expected a number, range, list, tensor')
            :format(i, kind == 'string' and "'" .. entry .. "'" or 'a ' .. kind),
            "ranges are strings: x[{ '1:3', ':', 0 }]")
        end
        if range[1] or range[2] or range[3] then
          x = aten.slice(x, dim, range[1], range[2], range[3])
        end
        keep(1)
      end
    end
    return x, any and tensors or nil
  end

  local function entries_of(key)
    if type(key) == 'table' and getmetatable(key) ~= Range then return key end
    return { key }
  end

  local M = {}

  function M.at(x, key)
    if type(key) == 'number' then return aten.select(x, 0, key) end
    local view, tensors = basic(x, entries_of(key))
    if tensors then return aten.index(view, tensors) end
    return view
  end

  function M.put(x, key, value)
    local view, tensors = basic(x, entries_of(key))
    if type(value) == 'boolean' then value = value and 1 or 0 end
    if type(value) == 'table' then value = C.from_table(value, x.dtype, x.device) end
    if tensors then
      if type(value) == 'number' then value = C.from_table(value, x.dtype, x.device) end
      aten.index_put_(view, tensors, value)
    elseif type(value) == 'number' then
      aten.fill_(view, value)
    else
      aten.copy_(view, value)
    end
  end

  --- The range start, start + step, … below stop, for x[{…}].
  function C.slice(start, stop, step) return setmetatable({ start, stop, step }, Range) end

  return M
end
