--- What `nnscaler compile` tells of the programs: memory of each rank before anything has run.
local base = require 'nnscaler._C.base'
local log = require('nnscaler.log').logger 'nnscaler.compile'
local phases = require 'nnscaler.trainer.phases'
local traffic = require 'nnscaler.runtime.traffic'
local units = require 'nnscaler.units'

local M = {}

local Report = {}
Report.__index = Report

-- Most bytes that this process had in memory.
local function resident()
  for line in io.lines '/proc/self/status' do
    local kb = line:match '^VmHWM:%s*(%d+) kB'
    if kb then return tonumber(kb) * 1024 end
  end
end

---@param optimizer table of the job
---@param settings nnscaler.trainer.MemorySettings
function M.new(optimizer, settings)
  return setmetatable({ rows = {}, start = base.clock(), optimizer = optimizer,
    settings = settings, written = 0, reused = 0 }, Report)
end

--- Takes in the training program of a rank.
---@param rank integer
---@param program nnscaler.Program
function Report:add(rank, program)
  self.rows[#self.rows + 1] = { rank = rank,
    memory = phases.of(self.optimizer, program, rank, self.settings),
    communication = traffic.line(program, program:traffic(), self.settings.micro_batches) }
end

--- Takes in which files were written, and which were there.
---@param made nnscaler.ProgramFile[]
function Report:files(made)
  for _, file in ipairs(made) do
    local what = file.fresh and 'written' or 'reused'
    self[what] = self[what] + 1
  end
end

--- Logs what is greatest over the ranks, and what it took to find out.
function Report:log()
  local top = self.rows[1]
  for _, row in ipairs(self.rows) do
    if row.memory.total > top.memory.total then top = row end
  end
  local m = top.memory
  log.info('Most memory: rank %d with %s (%s)', top.rank, units.bytes(m.total), phases.kinds(m))
  if m.host > 0 then log.info('On the host, of a rank: %s', units.bytes(m.host)) end
  log.info('%d program(s) of training in %.2f s, %s of memory', #self.rows,
    base.clock() - self.start, units.bytes(resident()))
end

--- Prints a line a rank.
function Report:print()
  local offloads = false
  for _, row in ipairs(self.rows) do offloads = offloads or row.memory.host > 0 end
  print(('%6s %12s %12s %12s %12s %9s %12s %12s %12s %12s%s'):format('rank', 'weights',
    'gradients', 'optimizer', 'saved', 'in flight', 'peak', 'forward', 'backward', 'step',
    offloads and '      on host' or ''))
  for _, row in ipairs(self.rows) do
    local m = row.memory
    local of = m.phases
    print(('%6d %12s %12s %12s %12s %9d %12s %12s %12s %12s%s'):format(row.rank,
      units.bytes(m.parameters), units.bytes(m.gradients), units.bytes(m.optimizer),
      units.bytes(m.saved), m.in_flight, units.bytes(m.peak), units.bytes(of.forward.total),
      units.bytes(of.backward.total), units.bytes(of.step.total),
      offloads and (' %12s'):format(units.bytes(m.host)) or ''))
  end
  if offloads then
    print 'on host: gradients, optimizer and activations that rest there, not in the total'
  end
  print 'saved: kept by one micro-batch of a stage between forward and backward'
  print 'in flight: micro-batches of a stage that wait for backward; peak: activations of all'
  print 'forward, backward, step: all that is there at most at the end of a forward, until all'
  print 'gradients are there, and in the step of the optimizer'
  for _, row in ipairs(self.rows) do print(('rank %d: %s'):format(row.rank, row.communication)) end
  print(('files: %d written, %d reused'):format(self.written, self.reused))
end

return M
