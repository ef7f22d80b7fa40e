--- A hook of jobs that writes the CPU seconds of each step to a file, one per line. Where other
--- work disturbs the machine they say more than wall time does.
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
    on_step_start = function() started = cpu() end,
    on_step_end = function()
      local file = assert(io.open(path, 'a'))
      file:write(('%.9f\n'):format(cpu() - started))
      file:close()
    end,
  }
end
