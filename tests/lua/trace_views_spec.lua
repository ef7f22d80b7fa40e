--- Random programs of views and writes: whatever the order, the graph computes what runs eagerly.
local T = require 'nnscaler.tensor'
local run = require 'tests.lua.graph_eval'
local trace = require 'nnscaler.trace'

-- A generator of our own: the same programs on every machine.
local function random_of(seed)
  local state = seed
  return function(n)  -- 1 … n
    state = (state * 1103515245 + 12345) % 2147483648
    return math.floor(state / 65536) % n + 1
  end
end

-- Each makes a function of a tensor that returns a view of it, or nil where it does not apply.
local views = {
  function(x, random)
    local dim = random(x:dim()) - 1
    local size = x:size(dim)
    if size < 2 then return end
    local start, step = random(size) - 1, random(2)
    return function(t) return (t:slice(dim, start, size, step)) end
  end,
  function(x, random)
    if x:dim() < 2 then return end
    local dim = random(x:dim()) - 1
    local index = random(x:size(dim)) - 1
    return function(t) return (t:select(dim, index)) end
  end,
  function(x, random)
    local a, b = random(x:dim()) - 1, random(x:dim()) - 1
    return function(t) return (t:transpose(a, b)) end
  end,
  function(x)
    local dims = {}
    for i = 1, x:dim() do dims[i] = (i % x:dim()) - x:dim() end
    return function(t) return (t:permute(dims)) end
  end,
  function(x, random)
    if x:dim() > 4 then return end
    local dim = random(x:dim() + 1) - 1
    return function(t) return (t:unsqueeze(dim)) end
  end,
  function() return function(t) return (t:squeeze()) end end,
  function(x)
    if not x:is_contiguous() then return end
    return function(t) return (t:view { -1 }) end
  end,
  function(x, random)
    local dim = random(x:dim()) - 1
    if x:size(dim) < 2 then return end
    return function(t) return t:chunk(2, dim)[2] end
  end,
  function(x, random)
    local dim = random(x:dim()) - 1
    return function(t) return (t:movedim({ dim }, { -1 })) end
  end,
}

local writes = {
  function(t, k) t:add_(k) end,
  function(t, k) t:mul_(-k) end,
  function(t) t:sin_() end,
  function(t, k) t:fill_(k) end,
  function(t) t:masked_fill_(t:gt(0), -2) end,
  function(t) t:copy_(t:flip({ 0 })) end,
  function(t) t[0] = t[-1] * 0.5 end,
  function(t) t:sub_(t:mean()) end,
}

-- A list of steps, chosen by running them: { kind, which tensor, what }.
local function plan(seed, x)
  local random, steps = random_of(seed), {}
  local tensors = { x * 1 }
  for _ = 1, 14 do
    local at = random(#tensors)
    local target = tensors[at]
    local choice = random(3)
    if choice == 1 and target:dim() > 0 then
      local view = views[random(#views)](target, random)
      if view then
        steps[#steps + 1] = { 'view', at, view }
        tensors[#tensors + 1] = view(target)
      end
    elseif choice == 2 and target:dim() > 0 then
      local write, k = writes[random(#writes)], random(5)
      steps[#steps + 1] = { 'write', at, function(t) write(t, k) end }
      write(target, k)
    elseif choice == 3 then
      steps[#steps + 1] = { 'read', at }
    end
  end
  return steps
end

local function program(steps)
  return function(x)
    local tensors, results = { x * 1 }, {}
    for _, step in ipairs(steps) do
      local target = tensors[step[2]]
      if step[1] == 'view' then
        tensors[#tensors + 1] = step[3](target)
      elseif step[1] == 'write' then
        step[3](target)
      else
        results[#results + 1] = target * 2
      end
    end
    for _, t in ipairs(tensors) do results[#results + 1] = t end
    return results
  end
end

describe('random views and writes', function()
  it('mean in a graph what they mean eagerly', function()
    local x = T.randn({ 4, 3, 2 }, { generator = T.generator(8), dtype = 'float64' })
    local written = 0
    for seed = 1, 300 do
      local forward = program(plan(seed, x))
      local graph = trace(forward, { x }, { training = false })
      local expected, values = forward(x), run(graph, { ['1'] = x })
      for i, output in ipairs(graph:outputs()[1]) do
        local got = values[output.value]
        assert.are.same(expected[i].shape, got.shape)
        local what = ('program %d, result %d'):format(seed, i)
        -- sin of strided and of dense memory may differ in the last bit.
        local far = (expected[i] - got):abs():max():item()
        assert.is_true(far <= 1e-10 * (1 + expected[i]:abs():max():item()), what)
      end
      if graph:text():find '_scatter' then written = written + 1 end
    end
    assert.is_true(written > 100, 'too few programs write through views')
  end)
end)
