--- Plans of autodist beside those that people write by hand, by the simulator's cost, for described
--- clusters of H100: data parallel with each level of ZeRO, fsdp, pipelines, megatron with and
--- without sequence parallelism, in pipelines and over data. Prints a row of docs/planner.md for
--- each model and number of ranks; ends with 1 where a plan by hand is faster.
---
--- Run: nnscaler tests/bench/plans.lua [MODEL…] [WORLD…]
local T = require 'nnscaler.tensor'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local MLP = require 'nnscaler.models.mlp'
local base = require 'nnscaler._C.base'
local compare = require 'nnscaler.commands.compare'
local nn = require 'nnscaler.nn'
local options = require 'nnscaler.options'
local pipeline = require 'nnscaler.pipeline'
local sources = require 'nnscaler.source'
local units = require 'nnscaler.units'

local function empty(shape, dtype) return T.empty(shape, { dtype = dtype, device = 'meta' }) end

local CNN = nn.class 'CNN'
CNN.forward_arg_names = { 'x', 'y' }

function CNN:init(widths, classes)
  self.stem = nn.Conv2d(3, widths[1], 3, { padding = 1 })
  self.blocks = nn.Sequential()
  for i = 2, #widths do
    self.blocks:append(nn.Sequential(
      nn.Conv2d(widths[i - 1], widths[i], 3, { padding = 1, stride = 2 }), nn.ReLU(),
      nn.Conv2d(widths[i], widths[i], 3, { padding = 1 }), nn.ReLU()))
  end
  self.head = nn.Linear(widths[#widths], classes)
  self.loss = nn.CrossEntropy()
end

function CNN:forward(x, y)
  return self.loss(self.head(self.blocks(self.stem(x)):mean { 2, 3 }), y)
end

local function tokens(batch, block)
  return { { x = empty({ batch, block }, 'int64'), y = empty({ batch, block }, 'int64') }, n = 1 }
end

-- Each with arguments of a micro-batch, and micro-batches of a step for each rank.
local models = {
  { 'mlp', 'MLP, 12 × 8,192', function()
    local sizes = {}
    for i = 1, 13 do sizes[i] = 8192 end
    local args = { empty({ 64, 8192 }, 'float32'), empty({ 64 }, 'int64'), n = 2 }
    return MLP { sizes = sizes }, args, 2
  end },
  { 'cnn', 'CNN, 5 stages to 1,024', function()
    return CNN({ 64, 128, 256, 512, 1024 }, 1000),
      { empty({ 32, 3, 128, 128 }, 'float32'), empty({ 32 }, 'int64'), n = 2 }, 2
  end },
  { 'gpt2-xl', 'GPT-2 XL, 1K tokens', function()
    return GPT { vocab = 50257, layers = 48, heads = 25, width = 1600, block = 1024, dropout = 0,
      bias = true }, tokens(2, 1024), 4
  end },
  { '8b', 'Llama-3-8B, 8K tokens', function()
    return Llama(Llama.configs['llama3-8b']), tokens(1, 8192), 4
  end },
  { '70b', 'Llama-3-70B, 8K tokens', function()
    return Llama(Llama.configs['llama3-70b']), tokens(1, 8192), 4
  end },
}

-- All plans by hand: data × pipeline × tensor parallelism, each with the levels of ZeRO.
local function hand(world)
  local list = {}
  local function add(policy, width, config)
    for zero = 0, width < world and 3 or 0 do
      list[#list + 1] = { policy = policy, width = width, config = config, zero = zero }
    end
  end
  add('dp', 1, {})
  list[#list + 1] = { policy = 'fsdp', width = 1, config = {} }
  local width = 2
  while width <= world do
    add('pp', width, {})
    local tensor = 2
    while tensor <= math.min(width, 8) do
      for _, sequence in ipairs { false, true } do
        add('megatron', width,
          { pipeline_nstages = width / tensor, sequence_parallel = sequence })
      end
      tensor = tensor * 2
    end
    width = width * 2
  end
  return list
end

local function seconds(s) return s < 1 and ('%.1f ms'):format(s * 1e3) or ('%.2f s'):format(s) end

local function described(found)
  local info = found.line.plan:info()
  local text = ('%d stage(s) of %d'):format(#info.stages, found.width * info.chunks / #info.stages)
  if #info.stages > 1 then text = text .. ', ' .. info.schedule end
  if info.zero > 0 then text = ('%s, ZeRO %d'):format(text, info.zero) end
  if found.line.plan:text():find ' recompute ' then text = text .. ', recomputes' end
  return text
end

local worse = 0

local function row(name, make, world)
  local model, args, micro = make()
  local job = { micro_batch_size = 1, global_batch_size = world * micro }
  local chosen = options.new { policy = 'autodist', pas_config = { pipeline_nstages = 'auto' },
    plan_ngpus = 1, runtime_ngpus = world, whole = false, settings = '', hardware = 'h100',
    optimizer = { type = 'adamw', args = { lr = 1e-3 } } }
  local line = pipeline.new(sources.of(model), chosen)
  local start = base.clock()
  local graph = line:graph(args, true)
  local traced = base.clock()
  local ok, found = pcall(compare.plans, job, line.source, chosen, graph, {})
  local solved = base.clock()
  local by_hand = compare.plans(job, line.source, options.new { policy = 'dp', pas_config = {},
    plan_ngpus = 1, runtime_ngpus = world, whole = false, settings = '', hardware = 'h100',
    optimizer = chosen.optimizer }, graph, hand(world))
  local best
  for _, other in ipairs(by_hand.rows) do
    if other.cost and other.cost.total <= by_hand.memory
      and (not best or other.cost.seconds < best.cost.seconds) then best = other end
  end
  local mine = ok and found.best.cost.total <= found.memory and found.best
  local gain = best and mine and 100 * (best.cost.seconds / mine.cost.seconds - 1)
  if best and (not mine or gain < -1e-6) then worse = worse + 1 end
  print(('| %s | %d | %s | %s | %s | %s | %s | %.1f s, %.1f s |'):format(name, world,
    mine and seconds(mine.cost.seconds) or 'nothing fits',
    mine and ('%d × %s, %s'):format(world / mine.width, described(mine),
      units.bytes(mine.cost.total)) or '',
    best and seconds(best.cost.seconds) or 'nothing fits',
    best and ('%s on %d, %s'):format(best.name, best.width, units.bytes(best.cost.total)) or '',
    gain and ('%+.1f %%'):format(gain) or '', traced - start, solved - traced))
  if not ok then print(tostring(found.message or found):match '^[^\n]*') end
end

local wanted, worlds = {}, {}
for _, a in ipairs(arg) do
  if tonumber(a) then worlds[#worlds + 1] = tonumber(a) else wanted[a] = true end
end
if #worlds == 0 then worlds = { 8, 32, 64 } end
print('| model | ranks | step | autodist: units × plan, memory | step | best by hand | gain '
  .. '| trace, search |')
print '|---|---|---|---|---|---|---|---|'
for _, m in ipairs(models) do
  if next(wanted) == nil or wanted[m[1]] then
    for _, world in ipairs(worlds) do row(m[2], m[3], world) end
  end
end
os.exit(worse == 0 and 0 or 1)
