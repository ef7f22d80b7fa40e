--- The library people program against. `require 'nnscaler'` is small; parts load at first use.
local parts = {
  nn = 'nnscaler.nn', optim = 'nnscaler.optim', data = 'nnscaler.data', models = 'nnscaler.models',
  tensor = 'nnscaler.tensor', functional = 'nnscaler.functional', fft = 'nnscaler.fft',
  log = 'nnscaler.log',
  trace = 'nnscaler.trace', recompute = 'nnscaler.recompute',
  register_op = 'nnscaler.register_op', ops = 'nnscaler.ops', import = 'nnscaler.import',
}

local M = {}

--- Declares parameters of a recipe: `nnscaler.params { layers = { 4, 'number of blocks' } }`.
---@param specs table<string, table> name → { default, help, choices = {…}?, min = …?, type = …? }
---@return table<string, any> values
function M.params(specs) return require('nnscaler.params').declare(specs) end

--- Makes the model of a folder of the `transformers` library (docs/hugging_face.md): its weights
--- are read, by each rank its parts, when the model is materialised.
---@param path string a folder with config.json and safetensors
---@param options? table `dtype`, and arguments of the model in place of those of config.json
---@return nnscaler.nn.Module
function M.from_pretrained(path, options)
  return require('nnscaler.hugging_face').from_pretrained(path, options)
end

--- Gives a model the weights of a safetensors file, of a checkpoint or of a folder of the
--- `transformers` library, under the model's names: read when it is materialised.
---@param model nnscaler.nn.Module
---@param path string
---@return nnscaler.nn.Module model
function M.load(model, path) return require('nnscaler.hugging_face').load(model, path) end

--- Marks a place of a model by name, for policies: graph:anchor(name) is the call that comes next.
---@param name string
function M.anchor(name) require('nnscaler._C.trace').anchor(name) end

--- Makes a trainer from the table that a recipe would return: `nnscaler.Trainer(args):run()`.
---@param args table keys of docs/configuration.md
---@param overrides? string[] `key.sub=value`, say from a script's `arg`
---@return nnscaler.Trainer
function M.Trainer(args, overrides)
  return require('nnscaler.trainer').new(require('nnscaler.job').from_table(args, overrides))
end

--- Rank of this process or thread, from 0.
---@return integer
function M.rank() return require('nnscaler.ranks').rank() end

--- Ranks of the run.
---@return integer
function M.world_size() return require('nnscaler.ranks').world_size() end

--- Rank among those of this host, from 0.
---@return integer
function M.local_rank() return require('nnscaler.ranks').local_rank() end

--- Ranks of this host.
---@return integer
function M.local_world_size() return require('nnscaler.ranks').local_world_size() end

--- Waits until every rank is here.
function M.barrier() require('nnscaler.ranks').barrier() end

--- Joins the ranks of a launcher; for scripts. With `ranks`, and no launcher, starts rank threads.
---@param opts? nnscaler.InitOpts
function M.init(opts) require('nnscaler.library.launch').init(opts) end

--- Makes a module or a class parallel, for a hand-written loop: docs/library.md.
---@param what nnscaler.nn.Module|table
---@param dummy_args table
---@param policy string|function
---@param compute_config nnscaler.ComputeConfig
---@param opts? nnscaler.ParallelizeOpts
---@return nnscaler.ParallelModule|table|nil
function M.parallelize(what, dummy_args, policy, compute_config, opts)
  return require 'nnscaler.library.parallelize'(what, dummy_args, policy, compute_config, opts)
end

--- Wraps a module that plans itself at its first call: docs/library.md.
---@param model nnscaler.nn.Module
---@param optimizer? { type: string|table|function, args?: table } as optimizer of a job
---@param opts? nnscaler.WrapOpts
---@return nnscaler.WrappedModule
---@return nnscaler.ParallelOptimizer|nil optimizer
function M.wrap(model, optimizer, opts)
  return require 'nnscaler.library.wrap'(model, optimizer, opts)
end

--- Makes the optimizer of a model with parallel modules in it.
---@param model nnscaler.nn.Module
---@param optimizer_fn string|table|function
---@param args? table options of the optimizer
---@return nnscaler.ParallelOptimizer
function M.build_optimizer(model, optimizer_fn, args)
  return require('nnscaler.library.optimizer').new(model, optimizer_fn, args)
end

-- State of models with parallel modules: lua/nnscaler/library/checkpoint.lua.
for _, name in ipairs {
  'state_dict', 'merge_state_dicts', 'load_merged_state_dict', 'deduped_state_dict',
  'load_deduped_state_dict', 'full_state_dict', 'broadcast_weights',
} do
  M[name] = function(...) return require('nnscaler.library.checkpoint')[name](...) end
end

--- What draws depend on beside their place: of forward of a hand-written loop.
---@param random { seed?: integer, step?: integer, micro?: integer } what is not given stays
function M.set_random(random) require('nnscaler._C.tensor').set_random(random) end

return setmetatable(M, {
  __index = function(t, key)
    local module = parts[key]
    if not module then return nil end
    local value = require(module)
    rawset(t, key, value)
    return value
  end,
})
