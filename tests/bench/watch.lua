--- A hook of jobs that writes one line per step to a file: its CPU seconds, and the most bytes that
--- tensors of this process had meanwhile. Where other work disturbs the machine they say more than
--- wall time and resident memory do.
local core = require 'nnscaler._C.tensor'
local ffi = require 'ffi'

ffi.cdef [[
  struct nns_bench_time { long seconds, nanoseconds; };
  int clock_gettime(int, struct nns_bench_time*);
]]

local kProcess = 2 -- CLOCK_PROCESS_CPUTIME_ID: all threads
local now = ffi.new 'struct nns_bench_time'
local function cpu()
  ffi.C.clock_gettime(kProcess, now)
  return tonumber(now.seconds) + tonumber(now.nanoseconds) * 1e-9
end

return function(path)
  local started
  return {
    on_step_start = function()
      core.memory(true)
      started = cpu()
    end,
    on_step_end = function()
      local seconds, _, bytes = cpu() - started, core.memory()
      local file = assert(io.open(path, 'a'))
      file:write(('%.9f %.0f\n'):format(seconds, bytes))
      file:close()
    end,
  }
end
