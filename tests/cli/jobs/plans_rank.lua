-- One process of tests/cli/same_numbers_spec.lua: runs the cells of a file on what a launcher has
-- started. Rank 0 writes the results of all ranks.
local base = require 'nnscaler._C.base'
local ranks = require 'nnscaler.ranks'
local run = require 'tests.equivalence.plans.rank'

local backend, cells_path, out_path = ...

require('nnscaler._C.comm').connect { backend = backend }
local all = ranks.exchange(run(base.file_read(cells_path)))
if ranks.rank() == 0 then base.file_write(out_path, '[' .. table.concat(all, ',') .. ']') end
ranks.barrier()
