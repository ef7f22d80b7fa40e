--- Work that one rank does for all, mostly rank 0, while the others wait, however long it takes: it
--- lets them know that it is alive, and an error of it reaches all of them.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.groups'

local M = {}

-- What it says: still at work, done, or failed.
local kBusy, kDone, kFailed = '.', '=', '!'

local function wait(ranks)
  local group = groups.group(ranks)
  while true do
    local said = group:exchange('')[1]
    local kind, rest = said:sub(1, 1), said:sub(2)
    if kind == kDone then return rest end
    if kind == kFailed then
      -- A failure to communicate: the rank that failed says the cause.
      local e = base.json_decode(rest)
      fail('communication', 'runtime.first', ('rank %d failed: %s'):format(ranks[1], e.message),
        e.hint)
    end
  end
end

--- Runs `work(beat)` on the first rank and gives its result, a text, to all. `work` calls `beat`
--- now and then: the others hear from it when `every` seconds have passed.
---@param ranks integer[] the one that works first
---@param rank integer this one
---@param work fun(beat: fun()): string
---@param every? number seconds, 10 unless told
---@return string
function M.run(ranks, rank, work, every)
  if rank ~= ranks[1] then return wait(ranks) end
  local group = groups.group(ranks)
  local last = base.clock()
  local function beat()
    if base.clock() - last >= (every or 10) then
      group:exchange(kBusy)
      last = base.clock()
    end
  end
  local ok, result = xpcall(function() return work(beat) end, function(e)
    if type(e) == 'table' then
      e.traceback = e.traceback or debug.traceback('', 2)
      return e
    end
    return { kind = 'internal', message = tostring(e), text = debug.traceback(tostring(e), 2) }
  end)
  if ok then
    group:exchange(kDone .. result)
    return result
  end
  group:exchange(kFailed .. base.json_encode { message = result.message or tostring(result),
    hint = result.hint })
  error(result.text or result, 0)
end

return M
