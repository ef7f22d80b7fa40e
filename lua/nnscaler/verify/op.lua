--- Checks one operator call against the operator table: types that the table infers against those
--- of the real kernel, and each split that its annotation allows against the whole call (but for
--- parts that lowering writes itself).
local C = require 'nnscaler._C.trace'
local fail = require 'nnscaler.fail'
local ops = require 'nnscaler.ops'

local M = {}

local function tensor_like(x)
  return type(x) == 'userdata'
end

-- Results of a call as one flat list with its length: lists of tensors are taken apart, an
-- undefined tensor is nil.
local function flatten(...)
  local flat, n = {}, 0
  for i = 1, select('#', ...) do
    local result = select(i, ...)
    if type(result) == 'table' then
      for _, item in ipairs(result) do
        n = n + 1
        flat[n] = item
      end
    else
      n = n + 1
      flat[n] = result
    end
  end
  return flat, n
end

---Returns the function that calls an operator by its full name ('aten::add.Tensor').
---@param name string
---@return fun(...): any
function M.operator(name)
  local space, op = name:match '^(.-)::(.+)$'
  if not space then
    local message = "'%s' is not an operator; expected a name as 'aten::linear'"
    fail('usage', 'verify.op', message:format(name))
  end
  return ops[space][op]
end

local function type_text(shape, dtype)
  return ('%s[%s]'):format(dtype, table.concat(shape, ', '))
end

-- Compares inferred with real types; an output that the table calls [0] may be undefined.
local function compare_types(inferred, results, count, problems)
  if #inferred ~= count then
    problems[#problems + 1] = ('%d outputs; the table infers %d'):format(count, #inferred)
    return
  end
  for i, t in ipairs(inferred) do
    local real = results[i]
    local said = type_text(t.shape, t.dtype)
    local is = tensor_like(real) and type_text(real.shape, real.dtype) or 'undefined'
    local masked = is == 'undefined' and #t.shape == 1 and t.shape[1] == 0
    if is ~= said and not masked then
      problems[#problems + 1] = ('output %d is %s; the table infers %s'):format(i - 1, is, said)
    end
  end
end

-- Largest difference of two tensors of one shape relative to the larger of 1 and the largest
-- element; infinite when shapes differ or a NaN stands on one side only.
local function difference(a, b)
  if table.concat(a.shape, ' ') ~= table.concat(b.shape, ' ') then return math.huge end
  if a:numel() == 0 then return 0 end
  local complex = a.dtype:find 'complex'
  if complex then a, b = ops.aten.view_as_real(a), ops.aten.view_as_real(b) end
  a, b = a:to('float64'), b:to('float64')
  local same = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  local gap = (a - b):abs():masked_fill(same, 0)
  local scale = b:abs():nan_to_num(0, 0, 0):amax():item()
  local largest = gap:amax():item()
  if largest ~= largest then return math.huge end
  return largest / math.max(1, scale)
end

-- Puts the parts of one output together as the split says.
local function recombine(split, pieces)
  if split.kind == 'dims' then
    if #split.axes > 1 then
      return nil, 'cut along several dims, of which only the diagonal is there'
    end
    return ops.aten.cat(pieces, split.axes[1])
  end
  if split.kind == 'value' then
    local sum = pieces[1]
    for i = 2, #pieces do sum = sum + pieces[i] end
    return sum
  end
  return pieces[1]
end

local function smallest_factor(n)
  for k = 2, n do
    if n % k == 0 then return k end
  end
  return nil
end

local function check_split(call, place, whole, count, tolerance)
  local parts = smallest_factor(place.length)
  local outputs = {}
  for part = 0, parts - 1 do
    local where = { input = place.input, dim = place.dim, parts = parts, part = part }
    local results, n = flatten(C.run_part(where, call.op, unpack(call.args, 1, call.args.n)))
    if n ~= count then return ('part %d has %d outputs; expected %d'):format(part, n, count) end
    outputs[part + 1] = results
  end
  for i = 1, count do
    if tensor_like(whole[i]) then
      local pieces = {}
      for part = 1, parts do pieces[part] = outputs[part][i] end
      local split = place.outputs[i]
      local joined, why = recombine(split, pieces)
      if not joined then return why end
      local gap = difference(joined, whole[i])
      for part = 2, split.kind == 'replicate' and parts or 1 do
        gap = math.max(gap, difference(pieces[part], whole[i]))
      end
      if gap > tolerance then
        return ('output %d (%s) differs by %.3g'):format(i - 1, split.kind, gap)
      end
    end
  end
  return nil
end

---@class nnscaler.verify.Report
---@field op string full name, overload resolved
---@field annotation string? the alternative that fits the call
---@field splits integer how many ways of splitting were run
---@field problems string[] empty: all is well

---Checks one call. Its tensors should be float64 where they are floating.
---@param op string 'aten::linear'
---@param args table list of arguments, their number in field n; a last table may hold keywords
---@param options { tolerance: number?, types_only: boolean? }? split against whole: 1e-11
---@return nnscaler.verify.Report
function M.check(op, args, options)
  args.n = args.n or #args
  local tolerance = options and options.tolerance or 1e-11
  local report = { op = op, splits = 0, problems = {} }
  local described = C.probe(op, unpack(args, 1, args.n))
  report.op, report.annotation = described.op, described.annotation
  local whole, count = flatten(M.operator(op)(unpack(args, 1, args.n)))
  compare_types(described.types, whole, count, report.problems)
  if options and options.types_only then return report end
  for _, place in ipairs(described.splits) do
    if place.length > 1 and not place.assisted then
      report.splits = report.splits + 1
      local problem = check_split({ op = op, args = args }, place, whole, count, tolerance)
      if problem then
        report.problems[#report.problems + 1] = ("'%s' split on %s (input %d, dim %d): %s"):format(
          described.annotation, place.identifier, place.input, place.dim, problem)
      end
    end
  end
  return report
end

return M
