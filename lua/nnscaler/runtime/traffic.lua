--- What a program sends, from the list that `program:traffic()` gives: calls by kind, and the
--- payload of a step.
local sorted = require 'nnscaler.sorted'
local units = require 'nnscaler.units'

local M = {}

---@class nnscaler.Traffic
---@field segment string 'forward', 'backward', …; 'step': sums of gradients, once per step
---@field op string 'all_reduce', 'send', …
---@field calls integer
---@field bytes integer
---@field weights boolean whether it gathers or scatters what rests in shards

--- Counts the calls of a micro-batch by kind, and the sums of gradients of a step.
---@param list nnscaler.Traffic[]
---@return { calls: table<string, integer>, reduced: integer }
function M.of(list)
  local out = { calls = {}, reduced = 0 }
  for _, t in ipairs(list) do
    if t.segment == 'step' then
      if not t.weights then out.reduced = out.reduced + t.calls end
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

--- Calls of a step by kind.
---@param list nnscaler.Traffic[]
---@param micro_batches integer of a unit, a step
---@return { op: string, calls: integer }[] by name
function M.step(list, micro_batches)
  local calls, out = {}, {}
  for _, t in ipairs(list) do
    calls[t.op] = (calls[t.op] or 0) + t.calls * (t.segment == 'step' and 1 or micro_batches)
  end
  for i, op in ipairs(sorted.sorted_keys(calls)) do out[i] = { op = op, calls = calls[op] } end
  return out
end

--- What a program communicates, in one line.
---@param program nnscaler.Program
---@param list nnscaler.Traffic[] of the program
---@param micro_batches integer of a unit, a step
---@return string
function M.line(program, list, micro_batches)
  local calls, all, paired = {}, program:adapters()
  for i, t in ipairs(M.step(list, micro_batches)) do calls[i] = ('%d %s'):format(t.calls, t.op) end
  local text = '%d adapters, %d of them fused pairs; in a step of %d micro-batch(es) %s, %s sent'
  return text:format(all, paired, micro_batches,
    calls[1] and table.concat(calls, ', ') or 'no collectives',
    units.bytes(M.bytes(list, micro_batches)))
end

return M
