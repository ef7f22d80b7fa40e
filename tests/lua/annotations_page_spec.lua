-- docs/annotations.md lists what the operator table says. Where the page is old:
--   NNSCALER_UPDATE=1 build/nnscaler test tests/lua/annotations_page_spec.lua
local C = require 'nnscaler._C.graph'
local base = require 'nnscaler._C.base'
local lower = require 'nnscaler._C.lower'
local samples = require 'nnscaler.verify.samples'
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

local function lines()
  local rules, calls, out = {}, samples.all(1), {}
  for _, rule in ipairs(lower.rules()) do rules[rule.op] = rule.kind end
  for _, row in ipairs(C.ops()) do
    local list = annotations(calls[row.name])
    local derivative = words[rules[row.name] or rules[row.name:match '^[^.]+'] or
      (row.constant or row.random) and 'constant' or 'autograd']
    out[#out + 1] = ('| `%s` | %s | %s |\n'):format(row.name:gsub('^aten::', ''),
      #list == 0 and 'never split' or table.concat(list, '<br>'):gsub('|', '\\|'), derivative)
  end
  return table.concat(out)
end

it('docs/annotations.md shows the operator table', function()
  local page = 'docs/annotations.md'
  local text = base.file_read(page)
  local head = text:match '^(.-\n| operator | [^\n]+\n|[-|]+\n)'
  local now = head .. lines()
  if os.getenv 'NNSCALER_UPDATE' then base.file_write(page, now) end
  assert.equal(now, base.file_read(page))
end)
