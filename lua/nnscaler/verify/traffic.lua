--- What a program sends, from the list that `program:traffic()` gives: calls by kind, and the
--- payload of a step.
local M = {}

---@class nnscaler.Traffic
---@field segment string 'forward', 'backward', …; 'step': sums of gradients, once a step
---@field op string 'all_reduce', 'send', …
---@field calls integer
---@field bytes integer

--- Counts the calls of a micro-batch by kind, and the sums of gradients of a step.
---@param list nnscaler.Traffic[]
---@return { calls: table<string, integer>, reduced: integer }
function M.of(list)
  local out = { calls = {}, reduced = 0 }
  for _, t in ipairs(list) do
    if t.segment == 'step' then
      out.reduced = out.reduced + t.calls
    else
      out.calls[t.op] = (out.calls[t.op] or 0) + t.calls
    end
  end
  return out
end

--- Payload bytes that the rank sends in a step.
---@param list nnscaler.Traffic[]
---@param forwards integer micro-batches
---@param backwards? integer of them, those that are not empty; as many by default
---@return integer
function M.bytes(list, forwards, backwards)
  local total = 0
  for _, t in ipairs(list) do
    local forward = t.segment:find '^forward'
    total = total + t.bytes * (t.segment == 'step' and 1 or forward and forwards
      or backwards or forwards)
  end
  return total
end

return M
