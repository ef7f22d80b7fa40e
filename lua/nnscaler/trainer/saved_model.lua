--- The model of a checkpoint, made again by the job that wrote it.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local job = require 'nnscaler.job'
local setup = require 'nnscaler.trainer.setup'

local M = {}

--- The job that wrote a checkpoint.
---@param saved nnscaler.Checkpoint
---@return nnscaler.Job
function M.job(saved)
  local made = saved.state.job
  if base.file_exists(made.file) ~= 'file' then
    fail('state', 'generate.job', ("'%s' was written by the job '%s', which is not there; the "
      .. 'model is made from it'):format(saved.path, made.file), 'put the job back, or train with '
      .. '`nnscaler run`')
  end
  return job.load(made.file, made.overrides)
end

--- Its model, with no values yet, in the precision of the job.
---@param saved nnscaler.Checkpoint
---@return nnscaler.nn.Module model, nnscaler.Job job
function M.make(saved)
  local made = M.job(saved)
  local model = setup.model(made)
  setup.cast_model(model, made)
  return model, made
end

return M
