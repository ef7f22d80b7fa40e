-- Runs tests/cli/jobs/fault.lua and measures how a fault ends: when, with which words, and what is
-- left behind.
local assert = require 'luassert'
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'

local M = {}

---@class Outcome
---@field said string what all ranks wrote
---@field code integer of the launcher
---@field fault number time of the fault
---@field seconds number from the fault to the end of the last process
---@field left string processes that are left

--- Lets a rank fail. Options are parameters of the job.
---@param launcher string
---@param n integer
---@param options string 'fault=kill where=forward who=1 at=3'
---@return Outcome
function M.run(launcher, n, options)
  local folder, remove = shell.folder()
  local command = ('run tests/cli/jobs/fault.lua folder=%s %s'):format(folder, options)
  local said, code = launchers.run(launcher, n, command, 100)
  local clock = shell.run 'date +%s.%N'
  local fault = base.file_exists(folder .. '/fault')
    and tonumber((base.file_read(folder .. '/fault'))) or nil
  -- A launcher may leave before the last of what it killed.
  local left
  for _ = 1, 100 do
    left = shell.processes('folder=' .. folder)
    if left == '' then break end
    shell.run 'sleep 0.1'
  end
  remove()
  return { said = said, code = code, seconds = fault and tonumber(clock) - fault, left = left,
    fault = fault }
end

-- What tells the cause, by fault.
local words = {
  kill = { 'rank %d was lost in ([^:]+): its process ended without a word' },
  stop = { 'rank %d was lost in ([^:]+): it is silent for 10 s' },
  lua = { 'error: rank %d, ([^:]+): [^\n]*boom in Lua' },
  cpp = { 'error: rank %d, ([^:]+): [^\n]*mat1 and mat2 shapes cannot be multiplied' },
  exit = { '%%[run.exit%%] os.exit%%(0%%) before the common end' },
}

--- Lets a rank fail while the others wait for it in a collective, and checks what each process
--- leaves with, and that the port at which they met is free.
---@param fault string
---@param code integer of the rank that fails
function M.codes(fault, code)
  local o = M.run('variables set by hand', 2, ('fault=%s where=collective who=1'):format(fault))
  assert.matches('process 0 left with 1\n', o.said)
  assert.matches(('process 1 left with %d\n'):format(code), o.said)
  assert.equal('', o.left)
  assert.is_false(launchers.listens(launchers.last_port))
end

--- Lets a rank fail in Lua and checks that the cause stands first, once, said by that rank.
---@param launcher string
---@param n integer
---@param where string 'setup', 'policy', 'data', 'hook' or 'save'
---@param who integer
function M.cause(launcher, n, where, who)
  local o = M.run(launcher, n, ('fault=lua where=%s who=%d'):format(where, who))
  assert.is_true(o.code ~= 0 and o.code ~= 124, o.said)
  assert.equal('', o.left)
  local first, times
  for line in o.said:gmatch '[^\n]+' do
    if line:find 'error: ' or line:find '| ERROR |' then
      first = first or line
      if line:find '^error: ' then times = (times or 0) + 1 end
    end
  end
  assert.matches(('^error: rank %d, [^:]+: [^\n]*boom in Lua'):format(who), first or o.said)
  assert.equal(1, times, o.said)
end

--- Lets a rank fail and checks everything: all leave in time, non-zero, one of them names the
--- cause, every other rank says in one line why it leaves, and nothing is left.
---@param launcher string
---@param n integer
---@param fault string
---@param where string
---@param who? integer
function M.check(launcher, n, fault, where, who)
  who = who or 1
  local o = M.run(launcher, n, ('fault=%s where=%s who=%d'):format(fault, where, who))
  local text = ('%s\ncode %s, after %s s'):format(o.said, o.code, tostring(o.seconds))
  assert.is_truthy(o.seconds, text)
  assert.is_true(o.code ~= 0 and o.code ~= 124, text)
  -- The ranks within 15 s, as their last words say; then the launcher, which may be slow itself.
  assert.is_true(o.seconds <= 60, text)
  for stamp in o.said:gmatch '([%d-]+ [%d:]+) | ERROR | nnscaler.launch[^\n]*leaves in' do
    local left = tonumber((shell.run(("date -d '%s' +%%s"):format(stamp))))
    assert.is_true(left - o.fault <= 15, text)
  end
  assert.equal('', o.left)
  local at = o.said:match(words[fault][1]:format(who))
  assert.is_truthy(at, text)
  local phase = ({ forward = 'forward', save = 'save', long = 'forward' })[where]
  if fault ~= 'exit' then
    assert.matches('step 3', at, 1, true)
    if phase then assert.matches(phase, at, 1, true) end
    if where == 'collective' and (fault == 'kill' or fault == 'stop') then
      assert.matches('of ranks', at, 1, true)
    end
  end
  local _, others = o.said:gsub('leaves in step 3[^\n]*rank ' .. who, '')
  local expected = n - 1
  -- The supervisor says what a lost rank cannot; elsewhere rank 0 does, or the lost rank 0's peers.
  assert.equal(expected, others, text)
end

return M
