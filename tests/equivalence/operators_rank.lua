--- What each of two ranks of operators_spec.lua runs: every case of the derivative tests, its call
--- cut in every way that its annotation allows, against autograd on one device.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local base = require 'nnscaler._C.base'
local cases = require 'tests.lua.derivative.cases'
local comm = require 'nnscaler.runtime.comm'
local draw = require('tests.equivalence.plans.random_policy').draw
local harness = require 'tests.lua.derivative.harness'
local sorted_keys = require('nnscaler.sorted').sorted_keys
local store = require 'nnscaler.runtime.store'

local SEED = harness.SEED
local seen -- ways of cutting that were tried

-- Dimensions of the operands: annotations differ by them.
local function ranks_of(graph, node)
  local out = {}
  for i, id in ipairs(node.inputs) do
    local shape = graph.values[id + 1].shape
    out[i] = #shape
    for _, size in ipairs(shape) do
      if size == 1 then out[i] = out[i] .. 'b' end -- may be broadcast
    end
  end
  return table.concat(out, ',')
end

local function cuts(graph, node, out)
  for _, place in ipairs(graph:choices(node)) do
    for _, uneven in ipairs { false, true } do
      place.uneven = uneven or nil
      if not graph:refusal(node, place, 2) then
        local key = ('%s(%s) input %d dim %d'):format(node.op, ranks_of(graph, node), place.input,
          place.dim)
        table.insert(out, { place = place, key = key })
        break
      end
    end
  end
end

-- A policy that cuts the call in its way number `which`, and half of the other operators anyhow.
local function policy_of(op, which, found)
  return function(graph)
    local ways = {}
    for _, node in ipairs(graph:nodes()) do
      local base_name = node.op:gsub('%.[%w_]+$', '')
      if base_name == op:gsub('%.[%w_]+$', '') then
        local list = {}
        cuts(graph, node, list)
        for _, way in ipairs(list) do
          way.node = node
          ways[#ways + 1] = way
        end
      end
    end
    found.count, found.way = #ways, ways[which]
    for _, node in ipairs(graph:nodes()) do
      if ways[which] and ways[which].node == node then
        graph:partition(node, ways[which].place, 2)
      elseif draw(2, which, node.id, 3) == 0 then
        local list = {}
        cuts(graph, node, list)
        if #list > 0 then
          graph:partition(node, list[draw(#list, which, node.id, 4) + 1].place, 2)
        end
      end
    end
    graph:replicate_rest()
  end
end

local function compare(call, program, loss, grads, want_loss, want)
  local tolerance = call.tolerance or 1e-11
  for _, name in ipairs(sorted_keys(want)) do -- where one operand is narrow, so are sums
    if want[name] and want[name].dtype == 'float32' then tolerance = 1e-5 end
  end
  if math.abs(loss - want_loss) > tolerance * math.max(1, math.abs(want_loss)) then
    return ('loss %.17g, expected %.17g'):format(loss, want_loss)
  end
  for _, name in ipairs(sorted_keys(grads)) do
    local g, w = grads[name], want[name]
    if (g and true or false) ~= (w and true or false) then
      return name .. ': only one has a gradient'
    elseif g then
      local d = harness.gap(store.region(w, store.slice_of(program.sharing.parts[name])), g)
      if d > 10 * tolerance then return ('%s differs by %.3g'):format(name, d) end
    end
  end
end

-- What the policy found, which runs on rank 0.
local function tell(found)
  local mine = base.json_encode { count = found.count, key = found.way and found.way.key }
  return base.json_decode(comm.group({ 0, 1 }):exchange(mine)[1])
end

-- One call in all ways that were not seen yet; returns problems.
local function check(call, problems, covered)
  local all, flags = harness.candidates(call), {}
  for _, k in ipairs(all) do flags[k] = true end
  local model, sample = harness.model(call, flags, 'dense', nil, call.reference)
  local want, expected = harness.run(Eager.new(model, { seed = SEED, device = 'cpu' }), sample)
  local which, count = 1, 1
  while which <= count do
    local found = {}
    local again, same = harness.model(call, flags, 'dense')
    local program = Program.new(again, { seed = SEED, device = 'cpu',
      pas_policy = policy_of(call.op, which, found),
      compute_config = { plan_ngpus = 2, runtime_ngpus = 2 } })
    program:prepare(same)
    local told = tell(found)
    count = told.count
    if told.key and not seen[told.key] then
      seen[told.key] = true
      covered[#covered + 1] = told.key
      local grads, result = harness.run(program, same)
      local problem = compare(call, program, result.loss, grads, expected.loss, want)
      if problem then problems[#problems + 1] = ('%s: %s'):format(told.key, problem) end
    end
    which = which + 1
  end
end

return function(argument)
  require('nnscaler.log').set_level 'error'
  local case = base.json_decode(argument)
  local problems, covered, rules = {}, {}, {}
  seen = {}
  local draws = {}
  for i, seed in ipairs(case.seeds) do draws[i] = cases.all(seed) end
  for _, op in ipairs(case.ops) do
    local before = #covered
    for i in ipairs(case.seeds) do
      for k, call in ipairs(draws[i][op] or {}) do
        local done, message = xpcall(check, function(e)
          return type(e) == 'table' and tostring(e) or debug.traceback(tostring(e), 2)
        end, call, problems, covered)
        if not done then error(('%s, case %d: %s'):format(op, k, message), 0) end
      end
    end
    if #covered > before then rules[#rules + 1] = op end
  end
  return base.json_encode { problems = problems, covered = covered, rules = rules }
end
