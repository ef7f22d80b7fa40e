--- Where one plan differs from another: what holds for the whole plan, then operators, those of
--- repeated modules in one line.
local base = require 'nnscaler._C.base'

local M = {}

local function folded(path) return (('.' .. path):gsub('%.%d+', '.*'):sub(2)) end

-- How a plan runs an operator, in words.
local function told(op, stages)
  local out = {}
  for _, cut in ipairs(op.steps) do
    out[#out + 1] = cut.input < 0 and ('%d times'):format(cut.parts)
      or ('operand %d dim %d into %d'):format(cut.input, cut.dim, cut.parts)
  end
  local text = #out > 0 and table.concat(out, ', ') or 'whole'
  text = text .. ' on ' .. table.concat(op.devices, ' ')
  if stages then text = ('%s, stage %d'):format(text, op.stage) end
  return op.recompute >= 0 and text .. ', recomputed' or text
end

--- The differences as text, '-' of the first, '+' of the second; nil where there are none.
---@param a userdata nnscaler.Plan
---@param b userdata nnscaler.Plan
---@return string|nil
function M.text(a, b)
  local one, two, out = base.json_decode(a:json()), base.json_decode(b:json()), {}
  for _, key in ipairs { 'policy', 'plan_ngpus', 'runtime_ngpus', 'stages', 'schedule',
    'micro_batches', 'chunks' } do
    if one[key] ~= two[key] and type(one[key]) ~= 'table' then
      out[#out + 1] = ('%s: - %s + %s'):format(key, tostring(one[key]), tostring(two[key]))
    end
  end
  if a:info().zero ~= b:info().zero then
    out[#out + 1] = ('ZeRO: - %d + %d'):format(a:info().zero, b:info().zero)
  end
  local stages = #a:info().stages > 1 or #b:info().stages > 1
  local of, groups, rows = {}, {}, {}
  local function name(op) return ('%s %s#%d'):format(op.module, op.op, op.ordinal) end
  for _, op in ipairs(two.ops) do of[name(op)] = told(op, stages) end
  local function count(op, before, after)
    if before == after then return end
    local key = table.concat({ folded(op.module), op.op, op.ordinal, before, after }, '\0')
    local row = groups[key]
    if not row then
      row = { name = ('%s %s#%d'):format(folded(op.module), op.op, op.ordinal), before = before,
        after = after, count = 0 }
      groups[key], rows[#rows + 1] = row, row
    end
    row.count = row.count + 1
  end
  for _, op in ipairs(one.ops) do
    count(op, told(op, stages), of[name(op)] or 'no such operator')
    of[name(op)] = nil
  end
  for _, op in ipairs(two.ops) do
    if of[name(op)] then count(op, 'no such operator', told(op, stages)) end
  end
  for _, row in ipairs(rows) do
    out[#out + 1] = ('%s%s\n  - %s\n  + %s'):format(row.name,
      row.count > 1 and (' x %d'):format(row.count) or '', row.before, row.after)
  end
  return #out > 0 and table.concat(out, '\n') or nil
end

return M
