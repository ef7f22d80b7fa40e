--- `nnscaler import MODEL.pt2`: what a model that PyTorch exported holds, and which of its
--- operators can be split. Nothing of the file is executed.
local C = require 'nnscaler._C.trace'
local base = require 'nnscaler._C.base'
local format = require 'nnscaler.format'
local units = require 'nnscaler.units'

local M = {}

local bytes_of = { float64 = 8, float32 = 4, bfloat16 = 2, float16 = 2, int64 = 8, int32 = 4,
  int16 = 2, int8 = 1, uint8 = 1, bool = 1, complex64 = 8, complex128 = 16 }

-- Number of tensors, elements and bytes of a role; what is tied counts once.
local function total(about, role)
  local sum, known = { tensors = 0, elements = 0, bytes = 0 }, {}
  for _, entry in ipairs(about.inputs) do
    if entry.role == role and not known[entry.place] then
      known[entry.place] = true
      local n = 1
      for _, size in ipairs(entry.shape) do n = n * size end
      sum.tensors, sum.elements = sum.tensors + 1, sum.elements + n
      sum.bytes = sum.bytes + n * bytes_of[entry.dtype]
    end
  end
  return sum
end

local function arguments(about)
  local list = {}
  for _, entry in ipairs(about.inputs) do
    if entry.role == 'input' and entry.dtype then
      local sizes = {}
      for d, size in ipairs(entry.sizes) do sizes[d] = size < 0 and 'any' or tostring(size) end
      list[#list + 1] = ('%s %s[%s]'):format(entry.name, entry.dtype, table.concat(sizes, ', '))
    elseif entry.role == 'input' then
      list[#list + 1] = 'a number'
    elseif entry.role == 'number' then
      list[#list + 1] = ('%s = %s'):format(entry.name, tostring(entry.value))
    end
  end
  return list
end

local function report(path, program)
  local about, operators = program:about(), program:operators()
  local calls, whole, missing = 0, {}, {}
  for _, use in ipairs(operators) do
    calls = calls + use.count
    if not use.there then
      missing[#missing + 1] = use
    elseif not use.recorded then
      whole[#whole + 1] = use
    end
  end
  return { path = path, model = about.name, torch = about.torch, arguments = arguments(about),
    results = #about.results, parameters = total(about, 'parameter'),
    buffers = total(about, 'buffer'), calls = calls, operators = operators, whole = whole,
    missing = missing }
end

local function tensors(sum)
  return sum.tensors == 0 and 'none' or ('%d tensors, %s elements, %s'):format(sum.tensors,
    format.grouped(sum.elements), units.bytes(sum.bytes))
end

local function show(r)
  print(('%s: %s, exported by PyTorch %s'):format(r.path, r.model, r.torch))
  print('  arguments   ' .. (#r.arguments > 0 and table.concat(r.arguments, ', ') or 'none'))
  print('  results     ' .. r.results)
  print('  parameters  ' .. tensors(r.parameters))
  print('  buffers     ' .. tensors(r.buffers))
  print(('  calls       %d of %d operators'):format(r.calls, #r.operators))
  if #r.missing > 0 then
    print '\nOperators that are not here; open the library that has them:'
    for _, use in ipairs(r.missing) do
      print(('  %s, %d×, first %s'):format(use.op, use.count, use.place))
      print(("    nnscaler.register_op('%s', { library = 'PATH.so' })"):format(use.op))
    end
  end
  if #r.whole > 0 then
    print '\nOperators without a record run whole on every rank; a line makes them splittable:'
    for _, use in ipairs(r.whole) do
      print(('  %s, %d×, first %s'):format(use.op, use.count, use.place))
      print(("    nnscaler.register_op('%s', { annotation = 'INPUTS -> OUTPUTS' })"):format(use.op))
    end
    print '  The language of annotations: docs/annotations.md.'
  end
end

---@param args { model: string, json?: boolean }
---@return integer exit code
function M.run(args)
  local r = report(args.model, C.open_program(args.model))
  if args.json then
    print(base.json_encode(r))
  else
    show(r)
  end
  return 0
end

return M
