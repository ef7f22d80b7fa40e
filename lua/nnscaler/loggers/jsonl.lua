--- One JSON object a step: the metrics of training, with val_loss where an evaluation followed.
local File = require 'nnscaler.loggers.file'
local base = require 'nnscaler._C.base'
local check = require 'nnscaler.loggers.arguments'
local json = require('nnscaler.format').json_number
local metric_names = require('nnscaler.loggers.metrics').names
local sorted = require 'nnscaler.sorted'

local Jsonl = {}
Jsonl.__index = Jsonl

function Jsonl:setup(trainer)
  local done = trainer.step
  self.file = File.open(self.path, done > 0 and function(line)
    local step = tonumber(line:match '"step": ?(%d+)')
    return step ~= nil and step <= done and line:sub(-1) == '}'
  end or nil)
end

-- The object of a step waits for its evaluation.
function Jsonl:log_metrics(metrics, step)
  self.step, self.pending = step, self.pending or {}
  for key, value in sorted.sorted_pairs(metrics) do self.pending[key] = value end
end

function Jsonl:end_step()
  if not self.pending then return end
  local pending, parts = self.pending, {}
  pending.step, self.pending = self.step, nil
  for i, name in ipairs(metric_names(pending)) do
    parts[i] = ('%s: %s'):format(base.json_encode(name), json(pending[name]))
  end
  self.file:write('{' .. table.concat(parts, ', ') .. '}')
end

function Jsonl:finalize()
  if not self.file then return end
  self:end_step()
  self.file:close()
end

--- Makes the logger.
---@param args { path: string }
return function(args)
  check('log.jsonl', args, { path = 'the name of a file' }, 'path')
  return setmetatable({ path = args.path }, Jsonl)
end
