--- Options that kinds of optimizers have in common, checked.
local fail = require 'nnscaler.fail'

local M = {}

--- Refuses options that are not numbers ≥ 0.
---@param options table
---@param key string where they stand in the job
---@param names string[]
function M.not_negative(options, key, names)
  for _, name in ipairs(names) do
    if type(options[name]) ~= 'number' or options[name] < 0 then
      fail('usage', key, ('%s is %s; expected a number ≥ 0'):format(name, tostring(options[name])))
    end
  end
end

--- Refuses `betas` that are not two numbers from 0 to below 1.
---@param options table
---@param key string
function M.betas(options, key)
  local betas = options.betas
  if type(betas) ~= 'table' or #betas ~= 2 then
    fail('usage', key, 'betas has to be a list of two numbers, as { 0.9, 0.999 }')
  end
  for i, beta in ipairs(betas) do
    if type(beta) ~= 'number' or beta < 0 or beta >= 1 then
      fail('usage', key, ('betas[%d] is %s; expected 0 ≤ beta < 1'):format(i, tostring(beta)))
    end
  end
end

return M
