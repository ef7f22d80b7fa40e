--- Constant learning rate after an optional linear warm-up.
local schedules = require 'nnscaler.schedules'

---@param args { warmup_steps?: integer }
---@param context nnscaler.ScheduleContext
---@return fun(t: integer): number
return function(args, context)
  local s = schedules.shared('constant', args, context)
  return function(t)
    if t < s.warmup then return schedules.warm(s, t) end
    return s.lr
  end
end
