--- Metrics as a table for spreadsheets: one row a step, and one for each evaluation. The columns
--- below come first; every other metric (of hooks too) gets one when it first appears, empty in the
--- rows before.
local File = require 'nnscaler.loggers.file'
local check = require 'nnscaler.loggers.arguments'
local metric_names = require('nnscaler.loggers.metrics').names

local kColumns = {
  'step', 'epoch', 'train_loss', 'gnorm', 'lr', 'tokens', 'train_wall', 'val_loss',
}

local Csv = {}
Csv.__index = Csv

-- The columns of a file that a run goes on with; nil where its first line is not a header of ours.
local function columns_of(line)
  if not line or not line:find '^step,' then return nil end
  local columns = {}
  for name in line:gmatch '[^,]+' do columns[#columns + 1] = name end
  return columns
end

function Csv:setup(trainer)
  local done = trainer.step
  self.file = File.open(self.path, done > 0 and function(line)
    local step = tonumber(line:match '^(%d+),')
    return line:find '^step,' ~= nil or (step ~= nil and step <= done)
  end or nil)
  self.columns, self.known = columns_of(self.file.lines[1]), {}
  if not self.columns then
    self.columns = { unpack(kColumns) }
    self.file:write(table.concat(self.columns, ','))
  end
  for _, name in ipairs(self.columns) do self.known[name] = true end
end

-- Adds columns for metrics that have none.
function Csv:widen(metrics)
  local before, added = table.concat(self.columns, ','), 0
  for _, name in ipairs(metric_names(metrics)) do
    if not self.known[name] then
      self.known[name], added = true, added + 1
      table.insert(self.columns, name)
    end
  end
  if added == 0 then return end
  local after, commas = table.concat(self.columns, ','), (','):rep(added)
  if not self.file.regular then return self.file:write(after) end
  self.file:change(function(line) return line == before and after or line .. commas end)
end

function Csv:log_metrics(metrics, step)
  self:widen(metrics)
  local row = {}
  for i, column in ipairs(self.columns) do
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
  check('log.csv', args, { path = 'the name of a file' }, 'path')
  return setmetatable({ path = args.path }, Csv)
end
