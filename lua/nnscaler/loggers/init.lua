--- Loggers: objects that receive metrics. `log` of a job is a list of `{ type, args }`, or of
--- objects themselves. A logger has `setup(trainer)`, `log_metrics(metrics, step, options)` with
--- options.tag 'train' or 'val', and `finalize()`; with `end_step()` it is told when nothing more
--- comes for a step. A module returns `function(args) → logger`.
local fail = require 'nnscaler.fail'
local resolve = require 'nnscaler.resolve'

local M = {}

local methods = { 'setup', 'log_metrics', 'finalize' }

--- Makes the loggers of a job.
---@param list table[]|nil
---@return table[]
function M.new(list)
  local loggers = {}
  for i, item in ipairs(list or {}) do
    local what = {
      key = ('log[%d].type'):format(i), prefix = 'nnscaler.loggers.',
      builtin = { 'csv', 'jsonl', 'tensorboard' },
      expects = 'a function (args) that returns a logger',
    }
    local logger = item
    if type(item) == 'string' or item.type ~= nil then
      local config = type(item) == 'string' and { type = item } or item
      logger = resolve(what, config.type)
      if type(logger) == 'function' then logger = logger(config.args or {}) end
    end
    for _, method in ipairs(methods) do
      if type(logger) ~= 'table' or type(logger[method]) ~= 'function' then
        fail('usage', ('log[%d]'):format(i), ("the logger has no method '%s'; expected %s")
          :format(method, table.concat(methods, ', ')))
      end
    end
    loggers[i] = logger
  end
  return loggers
end

return M
