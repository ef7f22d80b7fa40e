--- What each rank runs to verify a registered operator: a model that only calls it, through
--- autograd on one device and as the program of a plan that splits it.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local base = require 'nnscaler._C.base'
local nn = require 'nnscaler.nn'
local registered = require 'nnscaler.verify.registered'
local tensor = require 'nnscaler.tensor'

local function floating(x) return tensor.is_tensor(x) and x.dtype:find 'float' ~= nil end

-- Each floating argument is multiplied by a parameter of ones, which gets its gradient.
local function model_of(found, args)
  local Model = nn.class 'Operator'
  function Model:init()
    for i, x in ipairs(args) do
      if floating(x) then
        self['factor' .. i] = nn.Parameter { shape = x.shape, init = nn.init.constant(1) }
      end
    end
  end
  function Model:forward(sample)
    local list = {}
    for i, x in ipairs(args) do
      list[i] = tensor.is_tensor(x) and sample['x' .. i] or x
      if floating(x) then list[i] = list[i] * self['factor' .. i] end
    end
    local loss
    for _, result in ipairs { found.call(unpack(list)) } do
      if floating(result) then
        local term = result:sin():sum()
        loss = loss and loss + term or term
      end
    end
    return loss
  end
  return Model {}:to 'float64'
end

-- ‖a − b‖ / ‖b‖, or ‖a − b‖ where b is zero.
local function distance(a, b)
  local scale = b:norm():item()
  return (a - b):norm():item() / (scale > 0 and scale or 1)
end

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'error'
  local found = registered.find(case.name, case.module)
  local args, sample = registered.arguments(found), {}
  for i, x in ipairs(args) do
    if tensor.is_tensor(x) then sample['x' .. i] = x end
  end
  local function policy(graph)
    if case.input then
      for _, node in ipairs(graph:nodes()) do
        if node.op:match '^[^.]+' == case.name then
          graph:partition(node, { input = case.input, dim = case.dim }, case.parts)
        end
      end
    end
    graph:replicate_rest()
  end
  local eager = Eager.new(model_of(found, args), { seed = 1 })
  local want = eager:train_step({ sample }, { step = 0, seed = 1 })
  local program = Program.new(model_of(found, args), { seed = 1, pas_policy = policy,
    compute_config = { plan_ngpus = case.parts, runtime_ngpus = case.parts } })
  program:prepare(sample)
  local got = program:train_step({ sample }, { step = 0, seed = 1 })
  local worst = math.abs(got.loss - want.loss) / math.max(1e-30, math.abs(want.loss))
  local where = 'the loss'
  for _, leaf in ipairs(program.shares) do
    local a, b = program:grad(leaf.name), eager:grad(leaf.name)
    for d, start in ipairs(leaf.start or {}) do b = b:narrow(d - 1, start, leaf.shape[d]) end
    local d = distance(a, b)
    if d > worst or d ~= d then
      worst, where = d, 'the gradient of argument ' .. leaf.name:match '%d+'
    end
  end
  return base.json_encode { worst = worst, where = where }
end
