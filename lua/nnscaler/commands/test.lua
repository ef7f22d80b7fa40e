--- `nnscaler test`: runs specs and says how many passed.

local test = require 'nnscaler.test'
local fail = require 'nnscaler.fail'

local M = {}

--- Runs the specs; returns the exit code.
---@param opts nnscaler.test.Opts
---@return integer
function M.run(opts)
  local passed, failed, skipped = test.run(opts)
  if passed + failed + skipped == 0 then
    fail('usage', 'test.filter', ("no test matches '%s'"):format(opts.filter or ''))
  end
  print(('%d passed, %d failed%s'):format(
    passed, failed, skipped > 0 and (', %d skipped'):format(skipped) or ''))
  return failed == 0 and 0 or 1
end

return M
