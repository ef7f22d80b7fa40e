--- Text of tensors, as PyTorch prints them (4 digits, 80 columns, summarised above 1000 elements).
local kDigits, kThreshold, kEdge, kColumns = 4, 1000, 3, 80
local kMore = {}  -- stands for the elements left out

local function is_finite(v) return v == v and v ~= math.huge and v ~= -math.huge end

local function number_text(format, v)
  if v ~= v then return 'nan' end
  if v == math.huge then return 'inf' end
  if v == -math.huge then return '-inf' end
  return format:format(v)
end

-- Calls visit with each number of a nested list.
local function each(nested, visit)
  if nested == kMore then return end
  if type(nested) ~= 'table' then return visit(nested) end
  for _, item in ipairs(nested) do each(item, visit) end
end

-- Two nested lists of the same form as one of { a, b } pairs.
local function pairs_of(a, b, dims)
  if a == kMore then return kMore end
  if dims == 0 then return { a, b } end
  local items = {}
  for i = 1, #a do items[i] = pairs_of(a[i], b[i], dims - 1) end
  return items
end

-- A function from value to text of one width, and that width.
local function formatter(nested, floating)
  local width = 1
  local function measure(text) width = math.max(width, #text) end
  local function padded(text) return (' '):rep(width - #text) .. text end
  if not floating then
    local function text(v)
      if type(v) == 'boolean' then return v and 'True' or 'False' end
      return ('%.0f'):format(v)
    end
    each(nested, function(v) measure(text(v)) end)
    return function(v) return padded(text(v)) end, width
  end
  local least, most, whole = math.huge, 0, true
  each(nested, function(v)
    if v ~= 0 and is_finite(v) then
      least, most = math.min(least, math.abs(v)), math.max(most, math.abs(v))
      whole = whole and v == math.floor(v)
    end
  end)
  local some = most > 0
  local scientific = some and (most / least > 1000 or most > 1e8 or least < 1e-4)
  local format = scientific and ('%%.%de'):format(kDigits) or whole and '%.0f'
    or ('%%.%df'):format(kDigits)
  local dot = not scientific and whole
  local function text(v) return number_text(format, v) .. (dot and is_finite(v) and '.' or '') end
  each(nested, function(v)
    if v ~= 0 and is_finite(v) then measure(text(v)) end
  end)
  return function(v) return padded(text(v)) end, width
end

local function render(nested, dims, indent, text, width)
  if dims == 0 then return text(nested) end
  local items = {}
  if dims == 1 then
    for i, v in ipairs(nested) do items[i] = v == kMore and ' ...' or text(v) end
    local per_line = math.max(1, math.floor((kColumns - indent) / (width + 2)))
    local lines = {}
    for i = 1, #items, per_line do
      lines[#lines + 1] = table.concat(items, ', ', i, math.min(i + per_line - 1, #items))
    end
    return '[' .. table.concat(lines, ',\n' .. (' '):rep(indent + 1)) .. ']'
  end
  for i, item in ipairs(nested) do
    items[i] = item == kMore and '...' or render(item, dims - 1, indent + 1, text, width)
  end
  return '[' .. table.concat(items, ',' .. ('\n'):rep(dims - 1) .. (' '):rep(indent + 1)) .. ']'
end

-- "(2, 3)", and "(2,)" for one, as Python writes a shape.
local function size_text(shape)
  return '(' .. table.concat(shape, ', ') .. (#shape == 1 and ',' or '') .. ')'
end

return function(C, aten)
  -- Nested list of the elements that are shown.
  local function shown(x, summarize)
    local dims = x:dim()
    local n = dims > 0 and x:size(0) or 0
    if not summarize or dims == 0 or (dims == 1 and n <= 2 * kEdge) then return x:tolist() end
    local items = {}
    local function take(from, to)
      for i = from, to do items[#items + 1] = shown(aten.select(x, 0, i), summarize) end
    end
    if n <= 2 * kEdge then
      take(0, n - 1)
    else
      take(0, kEdge - 1)
      items[#items + 1] = kMore
      take(n - kEdge, n - 1)
    end
    return items
  end

  local function contents(x, indent)
    if x.device:find('^meta') then return '...' end
    if x:numel() == 0 then return '[]' end
    local data, summarize = x:detach(), x:numel() > kThreshold
    if x.dtype:find('^complex') then
      local re, im = shown(aten.real(data), summarize), shown(aten.imag(data), summarize)
      local re_text, re_width = formatter(re, true)
      local im_text, im_width = formatter(im, true)
      local function text(v)
        local tail = im_text(v[2]):gsub('^ +', '')
        return re_text(v[1]) .. (tail:find('^[+-]') and '' or '+') .. tail .. 'j'
      end
      return render(pairs_of(re, im, x:dim()), x:dim(), indent, text, re_width + im_width + 1)
    end
    local nested = shown(data, summarize)
    local text, width = formatter(nested, x:is_floating_point())
    return render(nested, x:dim(), indent, text, width)
  end

  local function suffixes(x)
    local list, dtype = {}, x.dtype
    local meta, empty = x.device:find('^meta') ~= nil, x:numel() == 0
    if x.device ~= 'cpu' then list[1] = ("device='%s'"):format(x.device) end
    if meta or (empty and x:dim() ~= 1) then list[#list + 1] = 'size=' .. size_text(x.shape) end
    local plain = dtype == 'float32'
      or not (meta or empty) and (dtype == 'int64' or dtype == 'bool' or dtype == 'complex64')
    if not plain then list[#list + 1] = 'dtype=torch.' .. dtype end
    local grad_fn = x.grad_fn
    if grad_fn then
      list[#list + 1] = ('grad_fn=<%s>'):format(grad_fn)
    elseif x.requires_grad then
      list[#list + 1] = 'requires_grad=True'
    end
    return list
  end

  return function(x)
    local kind = x.kind
    if kind == 'released' then return 'tensor(released)' end
    if kind == 'traced' or (kind == 'parameter' and not x.materialized) then
      local path = kind == 'parameter' and x.path ~= '' and (" '%s'"):format(x.path) or ''
      return ('%s%s(%s, size=%s)'):format(kind, path, x.dtype, size_text(x.shape))
    end
    return C.no_grad(function()
      local text = 'tensor(' .. contents(x, 7)
      local column = #text - #(text:match('^.*\n') or '') + 2
      local parts = { text }
      for _, suffix in ipairs(suffixes(x)) do
        if column + #suffix + 2 > kColumns then
          parts[#parts + 1] = ',\n       ' .. suffix
          column = 7 + #suffix
        else
          parts[#parts + 1] = ', ' .. suffix
          column = column + #suffix + 2
        end
      end
      local prefix = kind == 'parameter' and 'Parameter containing:\n' or ''
      return prefix .. table.concat(parts) .. ')'
    end)
  end
end
