--- What a rank of second_start_spec does: makes a small network under a plan ready, runs one step
--- and says what its start took.
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local files = require 'nnscaler.generated.files'
local lower = require 'nnscaler._C.lower'
local nn = require 'nnscaler.nn'

local M = {}

function M.model(width, act)
  local Net = nn.class 'Net'
  function Net:init()
    self.fc = nn.Linear(4, width or 8)
    self.proj = nn.Linear(width or 8, 2)
  end
  function Net:forward(sample)
    local h = self.fc(sample.x)
    h = act == 'tanh' and h:tanh() or h:relu()
    return self.proj(h):pow(2):mean()
  end
  return Net()
end

--- A policy that cuts the first product; `dim` is what it sees outside of itself.
function M.policy(dim)
  return function(graph, cfg)
    for _, node in ipairs(graph:select { module = 'fc', op = 'linear' }) do
      graph:partition(node, { input = 1, dim = dim }, cfg.plan_ngpus)
    end
    graph:replicate_rest()
  end
end

--- One start and one step; what of it was done anew.
---@param a { folder: string, width?: integer, act?: string, dim?: integer, rows?: integer,
---  policy?: string, reuse?: string, seed?: integer, evaluate?: boolean, ranks?: integer,
---  strategy?: string, plan_ngpus?: integer }
---@return table
function M.start(a)
  local lowered, written = lower.count(), files.count()
  local engine = Program.new(M.model(a.width, a.act), {
    seed = a.seed or 1, device = 'cpu', gen_savedir = a.folder, gen_reuse = a.reuse,
    broadcast_strategy = a.strategy, pas_policy = a.policy or a.dim and M.policy(a.dim),
    compute_config = { plan_ngpus = a.plan_ngpus },
  })
  local x = T.rand({ a.rows or 4, 4 }, { generator = T.generator(5) })
  engine:prepare { x = x }
  local step = engine:train_step({ { x = x } }, { step = 0 })
  local out = { loss = step.loss, weights = {}, path = engine.paths[1] }
  for _, p in ipairs(engine.parameters) do
    out.weights[p.name] = { value = p.data:tolist(), grad = engine:grad(p.name):tolist() }
  end
  if a.evaluate then out.evaluated = (engine:eval_step({ x = x }, {})) end
  out.traces, out.policies = engine.pipeline.traces, engine.pipeline.policies
  out.lowered, out.written = lower.count() - lowered, files.count() - written
  return out
end

---@param argument string
---@return string
function M.rank(argument)
  local a = base.json_decode(argument)
  if a.apart then a.folder = a.folder .. '/' .. comm.current():rank() end
  local ok, result = pcall(M.start, a)
  return base.json_encode(ok and result or { failed = tostring(result) })
end

return M
