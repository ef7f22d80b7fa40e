--- A recipe with a watch: `cpu=FILE` gets the CPU seconds of each step, one per line. Where other
--- work disturbs the machine they say more than wall time does.
local ffi = require 'ffi'
local nnscaler = require 'nnscaler'

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

local p = nnscaler.params {
  cpu = { '', 'file for the CPU seconds of each step' },
  recipe = { 'nanogpt', 'name of a file in recipes' },
}
local job = dofile(('%s/../../recipes/%s.lua'):format(debug.getinfo(1, 'S').source:match '^@(.*)/',
  p.recipe))
local started
job.hook = {
  on_step_start = function() started = cpu() end,
  on_step_end = function()
    local file = assert(io.open(p.cpu, 'a'))
    file:write(('%.9f\n'):format(cpu() - started))
    file:close()
  end,
}
return job
