--- Bytes that a Program keeps for backward, and the most that lives at once, from its JSON form.
local base = require 'nnscaler._C.base'

local M = {}

local bytes_of = { float64 = 8, int64 = 8, float32 = 4, bool = 1 }

-- Whether an accumulation takes its operand over.
local function owned(instr)
  for _, arg in ipairs(instr.args) do
    if arg[1] == 'owned' then return arg[2] end
  end
  return false
end

local function size(slot)
  local n = bytes_of[slot.dtype]
  for _, length in ipairs(slot.shape) do n = n * length end
  return n
end

--- Returns the bytes handed from forward to backward, and the greatest sum of live activations and
--- gradients; views count as tensors of their own.
---@param program userdata nnscaler.Program
---@return integer saved, integer peak
function M.of(program)
  local p = base.json_decode(program:json())
  local function own(id)
    local role = p.slots[id + 1].role
    return role == 'activation' or role == 'gradient'
  end
  local saved, live, peak = 0, 0, 0
  for _, segment in ipairs(p.segments) do
    if segment.name == 'backward' then
      for _, id in ipairs(segment.saved_in) do
        if own(id) then saved = saved + size(p.slots[id + 1]) end
      end
    end
    for _, instr in ipairs(segment.instrs) do
      if instr.kind == 'release' then
        for _, arg in ipairs(instr.args) do
          local id = type(arg[2]) == 'table' and arg[2].value
          if id and own(id) then live = live - size(p.slots[id + 1]) end
        end
      else
        -- The gradient takes an addend over; a result in place is its first operand.
        local first = instr.args[1] and type(instr.args[1][2]) == 'table' and instr.args[1][2].value
        local in_place = instr.op and instr.op:match '^[^.]+':match '%w_$'
        if first and own(first) and (in_place or instr.kind == 'accumulate' and owned(instr)) then
          live = live - size(p.slots[first + 1])
        end
        for _, id in ipairs(instr.outs or {}) do
          if id >= 0 and own(id) then live = live + size(p.slots[id + 1]) end
        end
      end
      peak = math.max(peak, live)
    end
  end
  return saved, peak
end

return M
