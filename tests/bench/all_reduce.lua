--- One rank of tests/bench/collectives.py: median time of an all-reduce of ours by size.
--- Run: mpirun -np 2 nnscaler tests/bench/all_reduce.lua
local comm = require 'nnscaler._C.comm'
local clock = require('nnscaler._C.base').clock
local T = require 'nnscaler.tensor'

local me = comm.connect()
local group = me:group({ 0, 1 }, { checked = false })
require('nnscaler._C.tensor').set_num_threads(1)

for _, bytes in ipairs { 1024, 2 ^ 20, 64 * 2 ^ 20 } do
  local x = T.ones { bytes / 4 }
  local rounds = bytes < 2 ^ 16 and 3000 or bytes < 2 ^ 24 and 500 or 15
  local times = {}
  for i = -9, rounds do
    local start = clock()
    group:all_reduce(x)
    if i > 0 then times[i] = clock() - start end
    if i % 50 == 0 then x:fill_(1) end -- sums must stay finite
  end
  table.sort(times)
  if me:rank() == 0 then
    print(('{"lib": "ours over %s", "bytes": %d, "median_us": %.2f, "min_us": %.2f}'):format(
      me:backend(), bytes, times[math.floor(rounds / 2)] * 1e6, times[1] * 1e6))
  end
end
