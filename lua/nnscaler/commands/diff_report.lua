--- What `nnscaler diff` says: both runs, and where they differ first.
local M = {}

local words = {
  input = 'Samples differ', forward = 'Forward differs first', backward = 'Backward differs first',
  gradient = 'Gradients differ after they were summed over micro-batches and ranks and scaled',
  weight = 'Weights differ after the update',
}

local function describe(letter, info)
  print(('%s  %s %s'):format(letter, info.job, table.concat(info.changes, ' ')))
  local precision = type(info.precision) == 'table' and 'of a table' or tostring(info.precision)
  print(('   policy %s, %d rank(s), %d device(s) a plan, %d scale unit(s), precision %s'):format(
    info.policy, info.ranks, info.plan_ngpus, info.units, precision))
end

--- Says what was run.
---@param a nnscaler.verify.Recording
---@param b nnscaler.verify.Recording
function M.sides(a, b)
  describe('A', a.info)
  describe('B', b.info)
end

local function box(part)
  local ranges = {}
  for d, start in ipairs(part.start) do
    ranges[d] = ('%d:%d'):format(start, start + part.shape[d])
  end
  return '[' .. table.concat(ranges, ', ') .. ']'
end

-- What a form of a value is.
local function form_of(found)
  local form, name = found.form, found.value.name
  if name == '' then name = 'result of ' .. found.producer.op end
  if form.gradient then
    return ('gradient of %s%s'):format(name, form.reader >= 0 and ', as this operator gives it'
      or '')
  end
  return name .. (form.reader >= 0 and ', as this operator reads it' or '')
end

local function print_parts(found)
  print '\nparts:'
  for _, form in ipairs(found.forms) do
    print(('  %s  %s'):format(form.side, form.layout ~= '' and form.layout or 'as it rests'))
    for _, part in ipairs(form.parts) do
      local line = { ('    rank %d  %s'):format(part.rank, box(part)) }
      if part.addends > 1 then
        line[#line + 1] = ('addend %d of %d'):format(part.addend + 1, part.addends)
      end
      if part.line then line[#line + 1] = ('line %d of its program'):format(part.line) end
      if part.tensor then
        line[#line + 1] = ('norm %.9g'):format(part.read():to('float64'):norm():item())
        line[#line + 1] = (part.gap or 0) > found.rounding and ('off by %.3g'):format(part.gap)
          or 'equal'
      else
        line[#line + 1] = 'the program makes no such call'
      end
      print(table.concat(line, '  '))
    end
  end
end

local function print_operator(node)
  print(('  operator   %s'):format(node.op))
  print(('  module     %s'):format(node.module == '' and 'the model' or node.module))
  local line = node.source and node.source:match '^%s*(.-)%s*$' or ''
  print(('  source     %s:%d%s'):format(node.file, node.line, line ~= '' and '  ' .. line or ''))
end

local function print_finding(found)
  local micro = found.micro and (', micro-batch %d'):format(found.micro) or ''
  print(('\n%s: step %d%s'):format(words[found.phase], found.step, micro))
  if found.name then print(('  %-9s  %s'):format(found.phase == 'input' and 'input' or 'state',
    found.name)) end
  if found.node then print_operator(found.node) end
  if found.value then
    print(('  value      %s, %s[%s]'):format(form_of(found), found.value.dtype,
      table.concat(found.value.shape, ', ')))
  end
  print(('  run        %s, rank %d'):format(found.form.side, found.part.rank))
  print(found.difference == math.huge and '  difference a part is missing, or not finite'
    or ('  difference %.3g of its norm; up to %g is rounding'):format(found.difference,
      found.limit))
  print_parts(found)
end

local function print_only(letter, nodes)
  for i, node in ipairs(nodes) do
    if i > 5 then
      print(('  and %d more'):format(#nodes - 5))
      return
    end
    print(('%s alone has %s at %s:%d, module %s'):format(letter, node.op, node.file, node.line,
      node.module == '' and 'the model' or node.module))
  end
end

--- Says where two runs differ first, or that they do not.
---@param compared nnscaler.verify.Compared
function M.result(compared)
  if #compared.first > 0 then
    local first = compared.first[1]
    print(('\n%d of the first weights differ, first %s by %s: B goes on with those of A.'):format(
      #compared.first, first.name, first.difference == math.huge
      and 'its shape, or one run has none' or ('%.3g of its norm'):format(first.difference)))
  end
  if #compared.only.a + #compared.only.b > 0 then print '' end
  print_only('A', compared.only.a)
  print_only('B', compared.only.b)
  if compared.finding then return print_finding(compared.finding) end
  local counts = compared.counts
  print(('\nNo difference in %d step(s): %d values, %d gradients and %d weights compared; the '
    .. 'largest difference is %.2g of a norm.'):format(compared.steps, counts.values,
    counts.gradients, counts.weights, compared.worst))
  if counts.running > 0 then
    print(('%d values of running buffers were not compared: scale units put them together at the '
      .. 'end of a step.'):format(counts.running))
  end
  if counts.unseen > 0 then
    print(('%d values lie whole in neither run and were not compared.'):format(counts.unseen))
  end
end

return M
