--- Loaders of a job's data: training, and one fixed pass of validation and of test data where there
--- are such.
local base = require 'nnscaler._C.base'
local component = require 'nnscaler.trainer.component'
local data = require 'nnscaler.data'
local fail = require 'nnscaler.fail'
local resolve = require 'nnscaler.resolve'
local sorted = require 'nnscaler.sorted'

local what = {
  key = 'dataset.type', prefix = 'nnscaler.data.',
  builtin = { 'characters', 'random_samples', 'tokens' },
  expects = 'a function (args) that returns a data set',
}
local loader_type = { key = 'dataloader.type',
  expects = 'a function (options) that returns a loader' }
local sampler_type = { key = 'dataset_sampler.type',
  expects = 'a function (options) that returns a sampler' }

---@class nnscaler.trainer.Loaders
---@field train nnscaler.Loader
---@field val nnscaler.Loader|nil
---@field test nnscaler.Loader|nil
---@field dataset any of training

-- Data sets of training, validation and test samples, or one of the first two in one.
local function data_sets(config)
  local described = type(config) == 'table' and config.type
  if described and (config.train_args or config.val_args or config.test_args) then
    local function of(args) return args and component(what, config, args) or nil end
    return of(config.train_args or config.args or {}), of(config.val_args), of(config.test_args)
  end
  local both = component(what, config)
  if type(both) == 'table' and both.train and not both.get and not both.training_loader then
    return both.train, both.val, both.test
  end
  return both
end

-- Options of one of the three loaders: what the job says of it, or of the one that it follows.
local function args_of(config, stage)
  if not config then return {} end
  local args = config[stage .. '_args']
  if args or stage == 'train' then return args or {} end
  if stage == 'test' then return args_of(config, 'val') end
  local rest = {}
  for key, value in sorted.sorted_pairs(config.train_args or {}) do
    if key ~= 'shuffle' and key ~= 'drop_last' then rest[key] = value end
  end
  return rest
end

local function check_args(key, args)
  for _, name in ipairs { 'batch', 'batch_size' } do
    if args[name] ~= nil then
      fail('usage', 'trainer.dataloader', ("%s has the key '%s'"):format(key, name),
        'micro_batch_size of the job says how many samples a micro-batch has')
    end
  end
end

-- The sampler of one of the loaders: nil is the library's own, by the loader's options.
local function sampler_of(job, stage)
  local config = job.dataset_sampler
  if not config then return nil end
  local args = config[stage .. '_args'] or stage == 'test' and config.val_args
  if not args and stage ~= 'train' then return nil end
  local options = { seed = job.seed }
  for key, value in sorted.sorted_pairs(args or {}) do options[key] = value end
  local make = config.type and resolve(sampler_type, config.type) or data.sampler
  local sampler = make(options)
  if type(sampler) ~= 'table' or type(sampler.index) ~= 'function' then
    fail('usage', 'dataset_sampler.type', ('the sampler is a %s without index(epoch, position, '
      .. 'size); expected an object with it'):format(type(sampler)))
  end
  return sampler
end

local function options_of(job, stage)
  local key = ('dataloader.%s_args'):format(stage)
  local options = { batch = job.micro_batch_size, seed = job.seed }
  local args = args_of(job.dataloader, stage)
  check_args(key, args)
  for name, value in sorted.sorted_pairs(args) do options[name] = value end
  if type(options.collate_fn) == 'string' then
    options.collate_fn = resolve({ key = key .. '.collate_fn', expects = 'a function' },
      options.collate_fn)
  end
  options.sampler = sampler_of(job, stage)
  return options
end

-- How a worker makes the loader again; nil for a job that no file holds.
local function worker_of(job, stage)
  local file = job:file()
  if base.file_exists(file) ~= 'file' then return nil end
  return { module = 'nnscaler.trainer.worker', argument = base.json_encode { file = file,
    overrides = job:overrides(), stage = stage } }
end

-- The loader of a data set; in the main state its options may ask for workers.
local function make(job, dataset, stage, main, units)
  local options = options_of(job, stage)
  local own = job.dataloader and job.dataloader.type
  if own then
    options.dataset, options.stage = dataset, stage
    return resolve(loader_type, own)(options)
  end
  options.stride = units
  if main and options.num_workers then
    options.worker = worker_of(job, stage)
  else
    options.num_workers = nil
  end
  if stage == 'train' then return data.training_loader(dataset, options) end
  return data.pass(dataset, options)
end

local M = {}

--- The loaders of a job.
---@param job nnscaler.Job
---@param units integer scale units: each takes every so many-th micro-batch
---@return nnscaler.trainer.Loaders
function M.new(job, units)
  local train, val, test = data_sets(job.dataset)
  local out = { train = make(job, train, 'train', true, units), dataset = train }
  if val then out.val = make(job, val, 'val', true, units) end
  if test then out.test = make(job, test, 'test', true, units) end
  if not val and data.has_validation(train) then
    local options = options_of(job, 'val')
    options.stride = units
    out.val = data.validation_loader(train, options)
  end
  return out
end

--- One of them, which makes its samples itself: for workers.
---@param job nnscaler.Job
---@param stage 'train'|'val'|'test'
---@return nnscaler.Loader
function M.one(job, stage)
  local train, val, test = data_sets(job.dataset)
  return make(job, ({ train = train, val = val, test = test })[stage], stage, false, 1)
end

return M
