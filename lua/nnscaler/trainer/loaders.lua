--- Loaders of a job's data: training, and one fixed pass of validation where there are such data.
local component = require 'nnscaler.trainer.component'
local data = require 'nnscaler.data'

local what = {
  key = 'dataset.type', prefix = 'nnscaler.data.',
  builtin = { 'characters', 'random_samples', 'tokens' },
  expects = 'a function (args) that returns a data set',
}

-- A data set of training samples and one of validation samples, or one that holds both.
local function data_sets(config)
  if type(config) == 'table' and config.type and (config.train_args or config.val_args) then
    local train = component(what, config, config.train_args or {})
    return train, config.val_args and component(what, config, config.val_args) or nil
  end
  local both = component(what, config)
  if type(both) == 'table' and both.train and not both.get and not both.training_loader then
    return both.train, both.val
  end
  return both, nil
end

---@param job nnscaler.Job
---@return nnscaler.Loader train, nnscaler.Loader|nil val, any dataset
return function(job)
  local options = { batch = job.micro_batch_size, seed = job.seed }
  local train, val = data_sets(job.dataset)
  local loader = data.training_loader(train, options)
  if val then return loader, data.pass(val, options), train end
  return loader, data.validation_loader(train, options), train
end
