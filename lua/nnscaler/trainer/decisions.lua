--- What hooks and signals decide on single ranks holds on all of them: at the end of a step one
--- reduction says whether to stop, save or evaluate, and before an update whether to leave it out.
local process = require 'nnscaler._C.process'
local ranks = require 'nnscaler.ranks'
local saver = require 'nnscaler.trainer.saver'

local M = {}

-- Hooks that may leave out the update of their step.
local kBeforeUpdate = { 'on_step_start', 'before_zero_grad', 'after_zero_grad',
  'on_train_step_start', 'on_train_step_end', 'after_aggregate_train_step_outputs',
  'before_sync_grad', 'after_sync_grad', 'before_gnorm_clip', 'after_gnorm_clip' }

-- The reason of the first rank that gives one.
local function agree_reason(t)
  for _, reason in ipairs(ranks.exchange(t.stop_reason or '')) do
    if reason ~= '' then
      t.stop_reason = reason
      return
    end
  end
end

--- Takes over what any rank has decided since the last call: t.signal, t.stop_reason, and
--- t.asked.save and t.asked.evaluate; goes on with a save that no rank is busy with. A collective.
---@param t nnscaler.Trainer
function M.agree(t)
  local signal, asked, busy = process.pending_signal(), t.asked, saver.busy(t)
  if t.sharing then
    local own = { signal or 0, t.stop_reason and 1 or 0, asked.save and 1 or 0,
      asked.evaluate and 1 or 0 }
    if t.saving then own[5] = busy and 1 or 0 end
    local any = t.sharing:over_all(own, 'max')
    signal = any[1] > 0 and any[1] or nil
    if any[2] > 0 then agree_reason(t) end
    asked.save, asked.evaluate, busy = any[3] > 0, any[4] > 0, t.saving and any[5] > 0
  end
  t.signal = t.signal or signal
  if not busy then saver.poll(t) end
end

--- Whether the update of this step is left out. A collective, where hooks may say so.
---@param t nnscaler.Trainer
---@return boolean
function M.skips(t)
  local skip = t.asked.skip
  if t.sharing and t.hooks:any(kBeforeUpdate) then
    skip = t.sharing:over_all({ skip and 1 or 0 }, 'max')[1] > 0
  end
  t.asked.skip = false
  return skip == true
end

return M
