--- Shows the calls of programs to who looks on: each with copies of its results, as they were when
--- it returned. Functions are wrapped only in runs that ask for it (`enable`, before any program is
--- loaded), so that all others pay nothing.
local tensor = require 'nnscaler.tensor'

local M = { enabled = false }

---@class nnscaler.WatchedCall
---@field op string with namespace and overload
---@field line integer of the program's text
---@field results table<integer, nnscaler.Tensor> copies, by their place among the results

---@class nnscaler.WatchedSegment a segment that has run
---@field graph userdata that the program was lowered from
---@field plan userdata|nil
---@field pipeline nnscaler.Pipeline
---@field program nnscaler.Program
---@field text string of its file
---@field segment string its name
---@field micro integer global number of the micro-batch in the step
---@field inputs table<string, nnscaler.Tensor>|nil of a forward: the sample

local running, look -- calls of the segment that runs; who looks on

--- Makes this run one that is looked at.
---@param f fun(ran: nnscaler.WatchedSegment, calls: nnscaler.WatchedCall[])
function M.enable(f) M.enabled, look = true, f end

--- From here on nobody looks.
function M.stop() look = nil end

--- A copy of a tensor that later writes do not reach.
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.copy(x) return x:detach():clone { memory_format = 'contiguous_format' } end

local function keep(call, ...)
  local results = { ... }
  if type(results[1]) == 'table' then results = results[1] end -- a list is taken apart
  for i = 1, math.max(#results, select('#', ...)) do
    local x = results[i]
    if tensor.is_tensor(x) then call.results[i] = M.copy(x) end
  end
  running[#running + 1] = call
  return ...
end

--- The function, whose calls in programs are seen.
---@generic F
---@param op string|nil of programs; nil: the first argument says it (`vjp`)
---@param f F
---@return F
function M.call(op, f)
  return function(...)
    if not running then return f(...) end
    local line = debug.getinfo(2, 'l').currentline
    return keep({ op = op or 'vjp::' .. (...), line = line, results = {} }, f(...))
  end
end

local function show(ran, calls, ...)
  running = nil
  look(ran, calls)
  return ...
end

--- The functions of a program's stages, whose runs are seen.
---@param stages table<integer, table<string, function>> as `load` gives them
---@param program nnscaler.Program
---@param of { graph: userdata, plan: userdata|nil, pipeline: nnscaler.Pipeline, text: string }
function M.stages(stages, program, of)
  for _, segment in ipairs(program:segments()) do
    local run = stages[segment.stage][segment.kind]
    stages[segment.stage][segment.kind] = function(...)
      if not look then return run(...) end
      running = {}
      local context = select(select('#', ...), ...)
      local inputs = segment.kind == 'F' and select(4, ...) or nil
      local ran = { segment = segment.name, program = program, micro = context.micro,
        inputs = inputs }
      for key, value in next, of do ran[key] = value end
      return show(ran, running, run(...))
    end
  end
end

return M
