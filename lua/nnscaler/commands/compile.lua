--- `nnscaler compile`: writes the programs of a job, for the shapes of its first training and
--- validation micro-batches, without training. One process writes those of all ranks.
local fail = require 'nnscaler.fail'
local files = require 'nnscaler.runtime.files'
local generate = require 'nnscaler.runtime.generate'
local log = require('nnscaler.log').logger 'nnscaler.compile'
local ranks = require 'nnscaler.ranks'
local report = require 'nnscaler.commands.report'
local run = require 'nnscaler.commands.run'
local sample_of = require 'nnscaler.runtime.sample'
local setup = require 'nnscaler.trainer.setup'
local sharing = require 'nnscaler.runtime.sharing'
local trace = require 'nnscaler.trace'
local trainer = require 'nnscaler.trainer'

local M = {}

---@class nnscaler.compile.Opts
---@field job string path
---@field changes string[]
---@field rank? integer
---@field report? boolean
---@field log_level? string

-- Programs of one mode of all ranks; `before` has the plan and the graph of another mode.
local function write(t, world, before, sample, mode, tell)
  local job, model = t.args, t.model
  local opts = {
    folder = job.gen_savedir, reuse = job.gen_reuse, mode = mode, first = true,
    settings = files.settings(job, world), model = model.class_name or 'model',
    device = job.device or 'cpu',
    set_mb = (job.compute_config or {}).reducer_bucket_cap_mb,
  }
  local args, n = sample_of.arguments(job, sample)
  args.n = n
  local training = mode == 'training'
  local shapes = trace.key(args, training)
  local graph = files.graph(opts, shapes, function()
    return (trace.trace(model, args, { training = training, name = opts.model }))
  end)
  log.info('%s specialised to %s', opts.model, shapes)
  local alone = world.runtime_ngpus == 1 and world.whole
  local plan = before.plan or not alone and sharing.make_plan(graph, job, world) or nil
  opts.first_graph = plan and before.graph
  local made = generate.all(graph, plan, world, opts, function(program, rank)
    generate.tell(program)
    tell:add(mode, rank, program)
  end, t.only)
  for _, file in ipairs(made) do print(file.path) end
  tell:files(made)
  return { plan = plan, graph = graph }
end

local function all_ranks(t, world, tell)
  t.model:assign_paths()
  local first = write(t, world, {}, t.train_loader:get(0), 'training', tell)
  if t.val_loader then write(t, world, first, t.val_loader:get(0), 'evaluation', tell) end
end

--- Prints the paths of the programs; returns the exit code.
---@param opts nnscaler.compile.Opts
---@return integer
function M.run(opts)
  local job = run.load(opts)
  if job.eager then
    fail('usage', 'compile.eager', 'eager=true runs without a generated program', 'leave it out')
  end
  local config = job.compute_config or {}
  local world = sharing.sizes(job, config.runtime_ngpus or config.plan_ngpus or 1)
  if world.runtime_ngpus % world.plan_ngpus ~= 0 then
    fail('usage', 'compile.ranks', ('compute_config.runtime_ngpus is %d; expected a multiple of '
      .. 'plan_ngpus = %d'):format(world.runtime_ngpus, world.plan_ngpus))
  end
  if ranks.world_size() > 1 then
    fail('usage', 'compile.ranks', ('compile writes the programs of all ranks in one process; '
      .. 'this is one of %d'):format(ranks.world_size()), 'start it without a launcher')
  end
  if opts.rank and (opts.rank < 0 or opts.rank >= world.runtime_ngpus) then
    fail('usage', 'compile.rank', ('--rank is %d; expected 0 to %d'):format(opts.rank,
      world.runtime_ngpus - 1))
  end
  local t = trainer.new(job)
  t.only = opts.rank
  world.micro_batches = setup.parts(t, world.runtime_ngpus / world.plan_ngpus)
  local tell = report.new(world.micro_batches, job.optimizer)
  all_ranks(t, world, tell)
  tell:log()
  if opts.report then tell:print() end
  return 0
end

--- Prints the parameters of a recipe.
M.help = run.help

return M
