--- What a rank of first_spec does.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local fail = require 'nnscaler.fail'
local first = require 'nnscaler.runtime.rank_zero'

local cases = {}

-- Rank 0 works longer than the time between two signs of life.
function cases.slow(beat)
  local stop, beats = base.clock() + 0.2, 0
  while base.clock() < stop do
    beat()
    beats = beats + 1
  end
  return 'made after ' .. (beats > 0 and 'beats' or 'nothing')
end

function cases.fails() fail('plan', 'policies.mine', 'no way to cut it', 'cut less') end

---@param argument string
---@return string
return function(argument)
  local case = base.json_decode(argument).case
  local world, ranks = comm.current(), {}
  for r = 0, world:size() - 1 do ranks[r + 1] = r end
  local ok, result = pcall(first.run, ranks, world:rank(), cases[case], 0.02)
  if ok then return result end
  return ('%s: %s (%s)'):format(result.kind, result.message, result.hint)
end
