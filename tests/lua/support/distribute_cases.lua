--- What a rank of distribute_spec does: one step of a small MLP under a plan, its programs written
--- by rank 0. Each rank has a folder of its own unless the case says `shared`.
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'

local Net = nn.class 'Net'
function Net:init()
  self.fc = nn.Linear(4, 8)
  self.proj = nn.Linear(8, 2)
end
function Net:forward(sample) return self.proj(self.fc(sample.x):relu()):pow(2):sum() end

local function policy(graph, cfg)
  for _, node in ipairs(graph:select { module = 'fc', op = 'linear' }) do
    graph:partition(node, { input = 1, dim = 0 }, cfg.plan_ngpus)
  end
  graph:replicate_rest()
end

local function broken() fail('plan', 'policies.mine', 'no way to cut it', 'cut less') end

---@param argument string
---@return string
return function(argument)
  local a = base.json_decode(argument)
  local rank, said, log = comm.current():rank(), {}, base.log
  base.log = function(level, name, text)
    said[#said + 1] = text
    return log(level, name, text)
  end
  local ok, result = pcall(function()
    local engine = Program.new(Net(), {
      seed = a.seeds and a.seeds[rank + 1] or 1, device = 'cpu', gen_savedir = a.folder
        .. (a.shared and '' or '/' .. rank), gen_reuse = a.reuse, broadcast_strategy = a.strategy,
      pas_policy = a.broken and broken or policy, compute_config = { plan_ngpus = 2 },
    })
    local x = T.rand({ 3, 4 }, { generator = T.generator(5) })
    engine:prepare { x = x }
    local step = engine:train_step({ { x = x } }, { step = 0 })
    local weights = {}
    for _, p in ipairs(engine.parameters) do weights[p.name] = p.data:tolist() end
    return base.json_encode { loss = step.loss, path = engine.paths[1], weights = weights,
      said = table.concat(said, '\n') }
  end)
  if not ok and a.raise then error(result, 0) end -- the others would wait for this rank
  return ok and result or base.json_encode { failed = tostring(result) }
end
