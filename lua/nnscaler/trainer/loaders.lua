--- Loaders of a job's data: training, and one fixed pass of validation where there are such data.
local data = require 'nnscaler.data'

-- A data set of training samples and one of validation samples, or one that holds both.
local function data_sets(job)
  local component = job.dataset
  if component.value == nil and (component.train_args or component.val_args) then
    local train = job:make('dataset', component.train_args or {})
    return train, component.val_args and job:make('dataset', component.val_args) or nil
  end
  local both = job:make 'dataset'
  if type(both) == 'table' and both.train and not both.get and not both.training_loader then
    return both.train, both.val
  end
  return both, nil
end

---@param job nnscaler.Job
---@return nnscaler.Loader train, nnscaler.Loader|nil val, any dataset
return function(job)
  local options = { batch = job.micro_batch_size, seed = job.seed }
  local train, val = data_sets(job)
  local loader = data.training_loader(train, options)
  if val then return loader, data.pass(val, options), train end
  return loader, data.validation_loader(train, options), train
end
