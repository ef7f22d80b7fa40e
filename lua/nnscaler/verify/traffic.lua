--- What a program sends: calls by kind, and the payload of a step.
local M = {}

--- Counts the calls of a program's forward and backward by kind ('all_reduce', 'send', …) and the
--- sums of gradients.
---@param program userdata nnscaler.Program
---@return { calls: table<string, integer>, reduced: integer }
function M.of(program)
  local out = { calls = {}, reduced = 0 }
  for _, t in ipairs(program:traffic()) do
    if t.segment == '' then
      out.reduced = out.reduced + 1
    else
      local kind = t.op:match '::(.*)$'
      out.calls[kind] = (out.calls[kind] or 0) + 1
    end
  end
  return out
end

--- Payload bytes that the rank sends in a step of so many micro-batches.
---@param program userdata nnscaler.Program
---@param micro_batches integer of its unit, none of them empty
---@return integer
function M.bytes(program, micro_batches)
  local total = 0
  for _, t in ipairs(program:traffic()) do
    total = total + t.bytes * (t.segment == '' and 1 or micro_batches)
  end
  return total
end

return M
