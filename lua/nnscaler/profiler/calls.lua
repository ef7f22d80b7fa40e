--- What the calls of a program take as they run: in steps of training, on all ranks at once. A
--- call lasts until the next one begins, so what it takes to release its operands is in it, and the
--- calls of a segment add up to the segment; what begins beside them is left out.
local recorder = require 'nnscaler.runtime.profile'

local M = {}

---@class nnscaler.profiler.Calls
---@field open boolean whether calls are noted
---@field seconds number of all segments that were noted
local Calls = {}
Calls.__index = Calls

local function pack(...) return { n = select('#', ...), ... } end

--- Watches the segments of a program.
---@param program table of the engine
---@return nnscaler.profiler.Calls
function M.new(program)
  local self = setmetatable({ turns = {}, segments = {}, open = false, seconds = 0 }, Calls)
  local calls = program.lowered:call_costs()
  for i, segment in ipairs(program.lowered:segments()) do
    self.segments[segment.name] = calls[i]
    local f = program.stages[segment.stage][segment.kind]
    program.stages[segment.stage][segment.kind] = function(...)
      if not self.open then return f(...) end
      recorder.marks = {}
      local results = pack(f(...))
      local marks = recorder.marks
      recorder.marks = nil
      marks[#marks + 1] = recorder.now()
      self.seconds = self.seconds + marks[#marks] - marks[1]
      self.turns[#self.turns + 1] = { segment = segment.name, marks = marks }
      return unpack(results, 1, results.n)
    end
  end
  return self
end

local function median(list)
  table.sort(list)
  local n = #list
  return n % 2 == 1 and list[(n + 1) / 2] or (list[n / 2] + list[n / 2 + 1]) / 2
end
M.median = median

--- Seconds of each call that was seen: the median over turns of each place, and of these the mean
--- over places of the same call. Communication is left out.
---@return table<string, table> by call: what Program:calls says of it, `seconds` and `places`
function Calls:result()
  local by_place, out = {}, {}
  for _, turn in ipairs(self.turns) do
    local calls = self.segments[turn.segment]
    if #turn.marks ~= #calls + 1 then
      require 'nnscaler.fail'('internal', 'profiler.calls', ('%s made %d calls; its program has %d')
        :format(turn.segment, #turn.marks - 1, #calls))
    end
    for i, call in ipairs(calls) do
      local list = by_place[call] or {}
      by_place[call] = list
      list[#list + 1] = turn.marks[i + 1] - turn.marks[i]
    end
  end
  for _, name in ipairs(require('nnscaler.sorted').sorted_keys(self.segments)) do
    for _, call in ipairs(self.segments[name]) do
      if by_place[call] and not call.communicates then
        local entry = out[call.call]
        if not entry then
          entry = { call = call.call, op = call.op, flops = call.flops, bytes = call.bytes,
            largest = call.largest, dtype = call.dtype, seconds = 0, places = 0 }
          out[call.call] = entry
        end
        entry.seconds = entry.seconds + median(by_place[call])
        entry.places = entry.places + 1
      end
    end
  end
  for _, entry in next, out do entry.seconds = entry.seconds / entry.places end
  return out
end

return M
