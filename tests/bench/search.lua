--- Processor seconds of autodist's search alone, on described H100s: a LLaMA is traced, and a plan
--- is searched for it. Prints a row of docs/planner.md.
---
--- Run: nnscaler tests/bench/search.lua MODEL LAYERS PLAN_NGPUS WORLD PIPELINE [GiB]
---   MODEL llama3-8b, llama3-70b, llama3-405b; LAYERS 0: all; PIPELINE 0: any number of ranks
local T = require 'nnscaler.tensor'
local Llama = require 'nnscaler.models.llama'
local autodist = require 'nnscaler.policies.autodist'
local options = require 'nnscaler.options'
local pipeline = require 'nnscaler.pipeline'
local sources = require 'nnscaler.source'

local name, layers, plan, world = arg[1], tonumber(arg[2]), tonumber(arg[3]), tonumber(arg[4])
local ranks, limit = tonumber(arg[5]), tonumber(arg[6])

local sizes = {}
for key, value in pairs(Llama.configs[name]) do sizes[key] = value end
if layers > 0 then sizes.layers = layers end
local function tokens() return T.empty({ 1, 8192 }, { dtype = 'int64', device = 'meta' }) end

local chosen = options.new { policy = 'autodist', plan_ngpus = plan, runtime_ngpus = world,
  pas_config = { pipeline_nstages = ranks == 0 and 'auto' or ranks, mem_constraint = limit },
  whole = false, settings = '', hardware = 'h100', device = 'cuda', micro_batches = 4 * plan,
  optimizer = { type = 'adamw', args = { lr = 1e-3 } } }
local line = pipeline.new(sources.of(Llama(sizes)), chosen)
local start = os.clock()
local graph = line:graph({ { x = tokens(), y = tokens() }, n = 1 }, true)
local traced = os.clock()
local found = autodist.search(graph, line:policy_config(graph))
print(('| %s | %d | %d of %d | %d | %d | %d | %.2f s | %.2f s | %s, %.4g s |'):format(name,
  sizes.layers, plan, world, found.labels, found.simulated, found.calls, traced - start,
  os.clock() - traced, found.arranged, found.cost.seconds))
