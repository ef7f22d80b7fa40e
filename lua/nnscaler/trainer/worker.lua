--- What a worker of a loader runs: the job again, and of it one loader.
local base = require 'nnscaler._C.base'
local job = require 'nnscaler.job'
local loaders = require 'nnscaler.trainer.loaders'
local log = require 'nnscaler.log'
local workers = require 'nnscaler.data.workers'

---@param argument string { file, overrides, stage } as JSON
---@return fun(n: integer): string, nnscaler.Tensor[]
return function(argument)
  local told = base.json_decode(argument)
  local made = job.load(told.file, told.overrides or {})
  log.set_level(made.log_level)
  return workers.serve(loaders.one(made, told.stage))
end
