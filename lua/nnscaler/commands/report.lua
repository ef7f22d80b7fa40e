--- What `nnscaler compile` tells of the programs: memory of each rank before anything has run.
local base = require 'nnscaler._C.base'
local log = require('nnscaler.log').logger 'nnscaler.compile'

local M = {}

local Report = {}
Report.__index = Report

local kUnits = { 'B', 'KB', 'MB', 'GB', 'TB' }

--- Bytes as people read them: 1536 → '1.5 KB'.
---@param bytes number
---@return string
function M.bytes(bytes)
  local unit = 1
  while bytes >= 1024 and unit < #kUnits do
    bytes, unit = bytes / 1024, unit + 1
  end
  return (unit == 1 and '%d %s' or '%.1f %s'):format(bytes, kUnits[unit])
end

-- Most bytes that this process had in memory.
local function resident()
  for line in io.lines '/proc/self/status' do
    local kb = line:match '^VmHWM:%s*(%d+) kB'
    if kb then return tonumber(kb) * 1024 end
  end
end

function M.new() return setmetatable({ rows = {}, start = base.clock() }, Report) end

--- Takes in the program of a rank; only those of training are told of.
---@param mode string
---@param rank integer
---@param program nnscaler.Program
function Report:add(mode, rank, program)
  if mode ~= 'training' then return end
  self.rows[#self.rows + 1] = { rank = rank, memory = program:memory() }
end

--- Logs what is greatest over the ranks, and what it took to find out.
function Report:log()
  local top = self.rows[1]
  for _, row in ipairs(self.rows) do
    if row.memory.total > top.memory.total then top = row end
  end
  local m = top.memory
  log.info('Most memory: rank %d with %s without optimizer state (weights %s, gradients %s, '
    .. 'activations %s)', top.rank, M.bytes(m.total), M.bytes(m.parameters), M.bytes(m.gradients),
    M.bytes(m.peak))
  log.info('%d program(s) of training in %.2f s, %s of memory', #self.rows,
    base.clock() - self.start, M.bytes(resident()))
end

--- Prints a line a rank.
function Report:print()
  print(('%6s %12s %12s %12s %12s %12s'):format('rank', 'weights', 'gradients', 'saved', 'peak',
    'total'))
  for _, row in ipairs(self.rows) do
    local m = row.memory
    print(('%6d %12s %12s %12s %12s %12s'):format(row.rank, M.bytes(m.parameters),
      M.bytes(m.gradients), M.bytes(m.saved), M.bytes(m.peak), M.bytes(m.total)))
  end
  print 'saved: kept by one micro-batch between forward and backward; peak: its activations'
end

return M
