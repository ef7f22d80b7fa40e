-- One rank of tests/cli/payload_spec.lua: a step of each case, counted below MPI and not by the
-- groups. Rank 0 writes the results of all to the file that the argument names.
local base = require 'nnscaler._C.base'
local ffi = require 'ffi'
local groups = require 'nnscaler.runtime.groups'
local ranks = require 'nnscaler.ranks'
local step = require 'tests.equivalence.traffic_rank'

local cases_path, out_path = ...

ffi.cdef 'long long mpi_bytes_sent(void);' -- of tests/cli/support/count_mpi.c
local function sent() return tonumber(ffi.C.mpi_bytes_sent()) end

-- Texts that ranks show each other are not payload.
local told = 0
local me = require('nnscaler._C.comm').connect { backend = 'mpi' }
local methods = getmetatable(me:group { me:rank() }).__index
local exchange = methods.exchange
function methods.exchange(group, text)
  local before = sent()
  local all = exchange(group, text)
  told = told + sent() - before
  return all
end
function groups.bytes_sent() return sent() - told end

local results = {}
for i, case in ipairs(base.json_decode(base.file_read(cases_path))) do
  results[i] = base.json_decode(step(base.json_encode(case)))
end
local all = ranks.exchange(base.json_encode(results))
if ranks.rank() == 0 then base.file_write(out_path, '[' .. table.concat(all, ',') .. ']') end
ranks.barrier()
