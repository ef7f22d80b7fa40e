--- A recipe with a watch: `cpu=FILE` gets one line per step: its CPU seconds, and the most bytes
--- that tensors of this process had meanwhile. Where other work disturbs the machine they say more
--- than wall time and resident memory do.
local ffi = require 'ffi'
local nnscaler = require 'nnscaler'
local core = require 'nnscaler._C.tensor'

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
  cpu = { '', 'file for CPU seconds and bytes of each step' },
  recipe = { 'nanogpt', 'name of a file in recipes' },
}
local job = dofile(('%s/../../recipes/%s.lua'):format(debug.getinfo(1, 'S').source:match '^@(.*)/',
  p.recipe))
local started
job.hook = {
  on_step_start = function()
    core.memory(true)
    started = cpu()
  end,
  on_step_end = function()
    local seconds, _, bytes = cpu() - started, core.memory()
    local file = assert(io.open(p.cpu, 'a'))
    file:write(('%.9f %.0f\n'):format(seconds, bytes))
    file:close()
  end,
}
return job
