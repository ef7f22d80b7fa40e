--- What loggers are given: numbers by name, and the order in which files show them.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

local kOrder = { 'step', 'epoch', 'train_loss', 'gnorm', 'lr', 'tokens', 'tokens_per_s', 'step_s',
  'train_wall', 'mfu', 'rss_bytes', 'val_loss', 'val_wall', 'test_loss', 'test_wall' }

local rank = {}
for i, key in ipairs(kOrder) do rank[key] = i end

--- Raises when something that a hook added is not a number by a name.
---@param metrics table
function M.check(metrics)
  for name, value in sorted.sorted_pairs(metrics) do
    if type(name) ~= 'string' or name:find '[,"%c]' or name == '' or not base.is_utf8(name) then
      fail('model', 'trainer.metrics', ("a metric has the name '%s'; expected a text without "
        .. 'commas, quotes and line ends'):format(tostring(name)), 'a hook added it')
    elseif type(value) ~= 'number' then
      fail('model', 'trainer.metrics', ("metric '%s' is %s; expected a number"):format(name,
        type(value) == 'string' and ("the text '%s'"):format(value) or 'a ' .. type(value)),
        type(value) == 'userdata' and 'x:item() is the number of a tensor'
        or 'a hook added it: before_log_train_metrics, or another that has the metrics')
    end
  end
end

--- Names of metrics: those of the trainer first, in its order, then the others by alphabet.
---@param metrics table<string, any>
---@return string[]
function M.names(metrics)
  local names = sorted.sorted_keys(metrics)
  table.sort(names, function(a, b)
    local x, y = rank[a] or #kOrder + 1, rank[b] or #kOrder + 1
    if x ~= y then return x < y end
    return a < b
  end)
  return names
end

return M
