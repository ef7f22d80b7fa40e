--- Engines of modules in hand-written loops: what their programs are made with, and weights that
--- are parts of the module's.
local Parallel = require 'nnscaler.library.module'
local Program = require 'nnscaler.runtime.program'
local fail = require 'nnscaler.fail'
local options = require 'nnscaler.options'
local products = require 'nnscaler.products'

local M = {}

--- What the programs of a module are made with.
---@param module nnscaler.nn.Module
---@param policy string|function
---@param config nnscaler.ComputeConfig
---@param opts nnscaler.ParallelizeOpts|nnscaler.WrapOpts
---@return nnscaler.Options
function M.options(module, policy, config, opts)
  local world = require('nnscaler._C.comm').current()
  local size = opts.load_module ~= false and (world and world:size() or 1)
    or config.runtime_ngpus or config.plan_ngpus
  if not size then
    fail('usage', 'library.load_module', 'load_module = false without '
      .. 'compute_config.runtime_ngpus; expected the number of ranks')
  end
  local pas_config = config.pas_config or {}
  local sizes = options.sizes(policy, config, size, pas_config)
  return options.new {
    policy = policy, pas_config = pas_config, plan_ngpus = sizes.plan_ngpus,
    runtime_ngpus = sizes.runtime_ngpus, whole = sizes.whole,
    micro_batches = opts.micro_batches or pas_config.pipeline_nmicros,
    settings = options.settings({ pas_policy = policy, pas_config = pas_config,
      compute_config = config }, sizes),
    folder = opts.gen_savedir or './.nnscaler', reuse = opts.reuse or 'match',
    -- Weights have no values yet where programs are sent.
    strategy = opts.broadcast_strategy ~= 'all' and opts.broadcast_strategy or 'code',
    name = module.class_name, instance_name = opts.instance_name,
    bucket_cap_mb = config.reducer_bucket_cap_mb,
    embedded = not config.use_end2end, zero = options.zero(config),
    products = products.choice(),
  }
end

--- Makes weights of an engine that are parts of the module's, with values or to be drawn.
---@param draws boolean
---@return function
function M.take(draws)
  return function(_, parameter, start, shape)
    return Parallel.part_of(parameter, start, shape,
      draws or parameter.is_buffer and not parameter.persistent)
  end
end

--- An engine; it has no program before its caches are asked for one.
---@param source nnscaler.Source
---@param chosen nnscaler.Options
---@param draws boolean whether parameters without values are to be drawn
---@return nnscaler.ProgramEngine
function M.new(source, chosen, draws) return Program.new(source, chosen, nil, M.take(draws)) end

return M
