-- One rank of tests/cli/comm_spec.lua: joins what started it and runs the cases named by its
-- arguments ('all': those that every rank passes). Options are read as key=value.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local cases = require 'tests.lua.support.comm_cases'

local options, names = {}, {}
for _, argument in ipairs { ... } do
  local key, value = argument:match '^([%a_]+)=(.*)$'
  if key then
    options[key] = tonumber(value) or value
  elseif argument == 'all' then
    names = cases.names
  else
    names[#names + 1] = argument
  end
end

local launch = require('nnscaler._C.launch').read()
if options.backend == 'nccl' then options.device = 'cuda:' .. launch.local_rank end

local me = comm.connect(options)
assert(comm.current():rank() == me:rank() and comm.connect():size() == me:size())
for _, name in ipairs(names) do
  local ok, e = pcall(cases.run, name, me)
  if not ok then error(('case %s, rank %d: %s'):format(name, me:rank(), tostring(e)), 0) end
end
base.log('info', 'test', ('%s %s: %d of %d ok'):format(me:backend(), launch.launcher, #names,
  #cases.names))
