--- The folder of a run's checkpoints: one run at a time writes there, and a run that starts from
--- scratch says what it finds.
local C = require 'nnscaler._C.checkpoint'
local checkpoint = require 'nnscaler.checkpoint'

local M = {}

--- Takes the folder for this run; it is free again after `release`, and when the process ends.
---@param t nnscaler.Trainer
function M.claim(t)
  local options = t.args.checkpoint
  if options.no_save or t.rank ~= 0 then return end
  t.claim = C.claim(options.save_dir)
  local found = options.resume_from == nil and checkpoint.list(options.save_dir) or {}
  if #found > 0 then
    t.log.warning("'%s' has %d checkpoint(s) of an earlier run, the last after %d steps; this run "
      .. 'starts from scratch and replaces those of equal epoch and step. '
      .. 'checkpoint.resume_from=last goes on from there.', options.save_dir, #found,
      found[#found].step)
  end
end

---@param t nnscaler.Trainer
function M.release(t)
  if t.claim then t.claim:release() end
  t.claim = nil
end

return M
