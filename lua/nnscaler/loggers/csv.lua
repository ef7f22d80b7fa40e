--- Metrics as a table for spreadsheets: one row a step, and one for each evaluation.
local File = require 'nnscaler.loggers.file'
local fail = require 'nnscaler.fail'

local kColumns = {
  'step', 'epoch', 'train_loss', 'gnorm', 'lr', 'tokens', 'train_wall', 'val_loss',
}

local Csv = {}
Csv.__index = Csv

function Csv:setup(trainer)
  local done = trainer.step
  self.file = File.open(self.path, done > 0 and function(line)
    local step = tonumber(line:match '^(%d+),')
    return line:find '^step,' ~= nil or (step ~= nil and step <= done)
  end or nil)
  if self.file.empty then self.file:write(table.concat(kColumns, ',')) end
end

function Csv:log_metrics(metrics, step)
  local row = {}
  for i, column in ipairs(kColumns) do
    local value = column == 'step' and step or metrics[column]
    row[i] = value and ('%.17g'):format(value) or ''
  end
  self.file:write(table.concat(row, ','))
end

function Csv:finalize()
  if self.file then self.file:close() end
end

--- Makes the logger.
---@param args { path: string }
return function(args)
  if type(args.path) ~= 'string' then
    fail('usage', 'log.csv', 'path is missing; expected the name of a file')
  end
  return setmetatable({ path = args.path }, Csv)
end
