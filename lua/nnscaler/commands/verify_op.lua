--- `nnscaler verify --op NAME`: checks one operator, of the table by the example calls of ours, or
--- a registered one by those of its registration.
local fail = require 'nnscaler.fail'
local log = require 'nnscaler.log'
local op = require 'nnscaler.verify.op'
local registered = require 'nnscaler.verify.registered'
local examples = require 'nnscaler.verify.examples'
local sorted = require 'nnscaler.sorted'

local M = {}

local function print_problems(problems, well)
  for _, problem in ipairs(problems) do print('  ' .. problem) end
  print(#problems == 0 and well or ('\n%d problem(s).'):format(#problems))
  return #problems == 0 and 0 or 1
end

-- An operator of the table: its example calls against the kernel. Derivatives of the table's own
-- operators are tested with the library.
local function check_builtin(name)
  local calls = examples.all(1)[name]
  if not calls then
    fail('usage', 'verify.op', ("no operator '%s' in the table, and no module named that registers "
      .. 'it'):format(name), 'nnscaler verify MODULE --op NAME, where MODULE is a recipe or is '
      .. 'found by require')
  end
  local problems, splits, notes = {}, 0, {}
  for k, call in ipairs(calls) do
    if not call.refused then
      local report = op.check(call.op, call.args, call)
      splits = splits + report.splits
      notes[report.annotation or 'never split'] = true
      for _, problem in ipairs(report.problems) do
        problems[#problems + 1] = ('example %d: %s'):format(k, problem)
      end
    end
  end
  print(name)
  for _, note in ipairs(sorted.sorted_keys(notes)) do print('  ' .. note) end
  return print_problems(problems, ('\n%d example calls have the types of the table; %d ways of '
    .. 'splitting give the whole.'):format(#calls, splits))
end

local function check_registered(name, module)
  local report = registered.check(name, module)
  print(name)
  print('  ' .. (report.annotation or 'never split'))
  return print_problems(report.problems, ('\nPure, with the shapes inferred and the derivative of '
    .. 'autograd; %d ways of splitting give the whole.'):format(report.splits))
end

--- Prints what was checked; returns the exit code.
---@param opts nnscaler.verify.Opts
---@return integer
function M.run(opts)
  log.set_level(opts.log_level or 'warning')
  if #opts.changes > 0 then
    fail('usage', 'verify.op', ("'%s' beside --op; expected one recipe or module"):format(
      opts.changes[1]))
  end
  if opts.job then return check_registered(opts.op, opts.job) end
  return check_builtin(opts.op)
end

return M
