--- Half a cosine from lr, at the end of the warm-up, to min_lr at decay_steps (default: the end of
--- the run); min_lr afterwards.
local schedules = require 'nnscaler.schedules'

---@param args { warmup_steps?: integer, min_lr?: number, decay_steps?: integer }
---@param context nnscaler.ScheduleContext
---@return fun(t: integer): number
return function(args, context)
  local s = schedules.shared('cosine', args, context)
  return function(t)
    if t < s.warmup then return schedules.warm(s, t) end
    if t >= s.stop then return s.min_lr end
    local part = (t - s.warmup) / (s.stop - s.warmup)
    return s.min_lr + 0.5 * (1 + math.cos(math.pi * part)) * (s.lr - s.min_lr)
  end
end
