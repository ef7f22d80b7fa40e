--- The ranks of a scale unit must be given the same samples: compared in the first calls, then now
--- and then.
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.comm'
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'

local M = {}

local kFirst, kEvery = 2, 100 -- calls that are compared

-- Numbers that tell tensors of other shape, type or elements apart.
local function fingerprint(x)
  local flat = x:detach():flatten():double()
  local places = tensor.arange(1, flat:numel() + 1, { dtype = 'float64', device = x.device })
  return ('%s[%s] %.17g %.17g'):format(x.dtype, table.concat(x.shape, ', '), flat:sum():item(),
    (flat * places):sum():item())
end

---@param sharing nnscaler.Sharing|nil
---@param inputs table<string, nnscaler.Tensor> by name
function M.check(sharing, inputs)
  if not sharing or sharing.plan_ngpus == 1 then return end
  local calls = sharing.calls or 0
  sharing.calls = calls + 1
  if calls >= kFirst and calls % kEvery ~= 0 then return end
  local lines = {}
  for i, name in ipairs(sorted.sorted_keys(inputs)) do
    lines[i] = name .. ' ' .. fingerprint(inputs[name])
  end
  local ranks, first = {}, sharing.unit * sharing.plan_ngpus
  for i = 1, sharing.plan_ngpus do ranks[i] = first + i - 1 end
  local said = groups.group(ranks):exchange(table.concat(lines, '\n'))
  for r, text in ipairs(said) do
    if text ~= said[1] then
      fail('data', 'runtime.sample', ('ranks %d and %d of one scale unit were given different '
        .. 'samples'):format(first, first + r - 1), 'the ranks of a unit (rank // plan_ngpus) take '
        .. 'the same samples, units take others')
    end
  end
end

return M
