-- docs/annotations.md lists what the operator table says. Where the page is old:
--   NNSCALER_UPDATE=1 build/nnscaler test tests/lua/annotations_page_spec.lua
local C = require 'nnscaler._C.graph'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local lower = require 'nnscaler._C.lower'
local examples = require 'nnscaler.verify.examples'
local trace = require 'nnscaler._C.trace'

local words = {
  rule = 'rule', composite = 'of its parts', constant = 'none', autograd = 'autograd',
}

-- Annotations of an operator's example calls, each once.
local function annotations(calls)
  local list, seen = {}, {}
  for _, call in ipairs(calls) do
    if not call.refused then
      local said = trace.probe(call.op, unpack(call.args, 1, call.args.n or #call.args)).annotation
      if said and not seen[said] then
        seen[said] = true
        list[#list + 1] = '`' .. said .. '`'
      end
    end
  end
  return list
end

-- What the page says of an operator.
local function line(name, calls, derivative)
  local list = annotations(calls)
  return ('| `%s` | %s | %s |\n'):format(name:gsub('^aten::', ''),
    #list == 0 and 'never split' or table.concat(list, '<br>'):gsub('|', '\\|'),
    words[derivative])
end

local function lines()
  local rules, calls, out = {}, examples.all(1), {}
  for _, rule in ipairs(lower.rules()) do rules[rule.op] = rule.kind end
  for _, row in ipairs(C.ops()) do
    out[#out + 1] = line(row.name, calls[row.name], rules[row.name] or
      rules[row.name:match '^[^.]+'] or (row.constant or row.random) and 'constant' or 'autograd')
  end
  return table.concat(out)
end

it('an operator of a script has its line as one of the system has', function()
  local spec = require 'tests.lua.support.own_ops' and
    require('nnscaler.register_op').specs['tests_library::cube'].spec
  local calls = { { op = 'tests_library::cube', args = spec.inputs(T.generator(1)) } }
  assert.equal('| `tests_library::cube` | `a b -> a b` | autograd |\n',
    line('tests_library::cube', calls, 'autograd'))
end)

it('docs/annotations.md shows the operator table', function()
  local page = 'docs/annotations.md'
  local text = base.file_read(page)
  local head = text:match '^(.-\n| operator | [^\n]+\n|[-|]+\n)'
  local now = head .. lines()
  if os.getenv 'NNSCALER_UPDATE' then base.file_write(page, now) end
  assert.equal(now, base.file_read(page))
end)
