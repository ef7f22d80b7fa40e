--- `nnscaler compile`: writes the programs of a job, for the shapes of its first training and
--- validation micro-batches, without training. One process writes those of all ranks.
local fail = require 'nnscaler.fail'
local log = require('nnscaler.log').logger 'nnscaler.compile'
local memory = require 'nnscaler.trainer.memory'
local options = require 'nnscaler.options'
local parts = require 'nnscaler.trainer.parts'
local phases = require 'nnscaler.trainer.phases'
local pipeline = require 'nnscaler.pipeline'
local ranks = require 'nnscaler.ranks'
local report = require 'nnscaler.commands.report'
local run = require 'nnscaler.commands.run'
local sample_of = require 'nnscaler.runtime.sample'
local setup = require 'nnscaler.trainer.setup'
local sources = require 'nnscaler.source'
local trainer = require 'nnscaler.trainer'
local width = require 'nnscaler.trainer.width'

local M = {}

---@class nnscaler.compile.Opts
---@field job string path
---@field changes string[]
---@field rank? integer
---@field ranks? integer how many there are, where the job does not say it
---@field report? boolean
---@field log_level? string

-- Writes the programs of one mode, of all ranks or of one.
local function write(line, job, sample, training, only, tell)
  local args, n = sample_of.arguments(job, sample)
  args.n = n
  local graph = line:graph(args, training)
  log.info('%s specialised to %s', line.source.name, line.source:key(args, training))
  if training then line:make_plan(graph) end
  local made = line:write_all(graph, function(program, rank)
    if training then tell:add(rank, program) end
  end, only)
  for _, file in ipairs(made) do print(file.path) end
  tell:files(made)
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
  local size = config.runtime_ngpus or opts.ranks or config.plan_ngpus or 1
  width.keep_to_limit(job)
  local open = width.open(job)
  if open then width.begin(job, size) end
  local world = options.of(job, size)
  if ranks.world_size() > 1 then
    fail('usage', 'compile.ranks', ('compile writes the programs of all ranks in one process; '
      .. 'this is one of %d'):format(ranks.world_size()), 'start it without a launcher')
  end
  if opts.rank and (opts.rank < 0 or opts.rank >= world.runtime_ngpus) then
    fail('usage', 'compile.rank', ('--rank is %d; expected 0 to %d'):format(opts.rank,
      world.runtime_ngpus - 1))
  end
  if parts.of(job) then
    parts.compile(job, world.runtime_ngpus, setup.dtype(job))
    return 0
  end
  local t = trainer.new(job)
  world.micro_batches = setup.parts(t, world.runtime_ngpus / world.plan_ngpus)
  local sample = setup.first_sample(t)
  if open then
    local cpu = (job.device or 'cpu') == 'cpu'
    width.apply(job, width.choose(t, size, cpu and memory.each_here(size) or nil, sample))
    local before = world
    world = options.of(job, size)
    world.micro_batches = world.plan_ngpus == before.plan_ngpus and before.micro_batches
      or setup.parts(t, world.runtime_ngpus / world.plan_ngpus)
  end
  local line = pipeline.new(sources.of(t.model), world)
  local tell = report.new(job.optimizer, phases.settings(job, line.source, world,
    world.micro_batches, phases.sample_bytes(sample)))
  write(line, job, sample, true, opts.rank, tell)
  if t.val_loader then write(line, job, t.val_loader:get(0), false, opts.rank, tell) end
  tell:log()
  if opts.report then tell:print() end
  return 0
end

--- Prints the parameters of a recipe.
M.help = run.help

return M
