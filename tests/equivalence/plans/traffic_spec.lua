--- What plans communicate, against closed forms: numbers of collectives and payload bytes to the
--- byte, for sizes that the number of ranks does not divide too.
local beside = require 'tests.equivalence.support.beside'
local ring = require 'tests.equivalence.support.ring'
local runner = require 'tests.equivalence.plans.runner'

local function run(model, policy, plan, ranks, micro, config)
  local cell = { model = model, policy = policy, plan = plan, ranks = ranks, micro = micro,
    config = config }
  runner.run { cell }
  return cell.results
end

-- Calls and bytes of a segment's operation over groups of `ranks`.
local function sum(result, segment, op, ranks, weights)
  local calls, bytes = 0, 0
  for _, entry in ipairs(result.traffic) do
    if entry.segment == segment and entry.op == op and entry.ranks == ranks
      and entry.weights == (weights or false) then
      calls, bytes = calls + entry.calls, bytes + entry.bytes
    end
  end
  return calls, bytes
end

-- Bytes of one gather or scatter of a weight over n ranks: of the dimension that pads least.
local function part(shape, n)
  local all, best = 1, math.huge
  for _, length in ipairs(shape) do all = all * length end
  for _, length in ipairs(shape) do best = math.min(best, math.ceil(length / n) * all / length) end
  return (n - 1) * best * 8
end

describe('communication of', function()
  for _, n in ipairs { 2, 4 } do
    it(('dp: one all-reduce of all gradients, %d ranks'):format(n), function()
      local elements = 7 * 11 + 11 + 11 * 5 + 5 + 5 * 3 + 3
      for r, result in ipairs(run('uneven', 'dp', 1, n, n)) do
        local calls, bytes = sum(result, 'step', 'all_reduce', n)
        assert.equal(1, calls)
        assert.equal(ring(n, r - 1, elements), bytes)
        assert.equal(1, #result.traffic)
        assert.equal(bytes + beside(n, r - 1, false), result.sent)
      end
    end)

    it(('fsdp: gather, gather again, scatter: 3(n−1)/n of the padded size, %d ranks'):format(n),
      function()
        -- Backward needs no bias, and of the first layer no gradient of its input.
        local again = part({ 5, 11 }, n) + part({ 3, 5 }, n)
        local once = part({ 11, 7 }, n)
        for _, width in ipairs { 11, 5, 3 } do once = once + part({ width }, n) end
        for r, result in ipairs(run('uneven', 'fsdp', 1, n, n)) do
          local gathers, forward = sum(result, 'forward', 'all_gather', n, true)
          local regathers, backward = sum(result, 'backward', 'all_gather', n, true)
          local scatters, scattered = sum(result, 'backward', 'reduce_scatter', n, true)
          assert.same({ 6, 2, 6 }, { gathers, regathers, scatters })
          assert.equal(again + once, forward)
          assert.equal(again, backward)
          assert.equal(again + once, scattered)
          assert.equal(3 * again + 2 * once + beside(n, r - 1, true), result.sent)
        end
      end)
  end

  -- Two layers; embedding and loss are cut by the vocabulary.
  local layers, stream, rows = 2, 4 * 8 * 8, 4 * 8
  for _, model in ipairs { 'llama', 'gpt tied' } do
    it('megatron: four all-reduces a layer of ' .. model, function()
      for r, result in ipairs(run(model, 'megatron', 2, 2, 1)) do
        local forward, bytes = sum(result, 'forward', 'all_reduce', 2)
        local backward, back = sum(result, 'backward', 'all_reduce', 2)
        -- Beside the layers: rows of the table, and three numbers a row of the loss; the gradient
        -- of the scores' input.
        assert.equal(2 * layers + 1 + 3, forward)
        assert.equal(2 * layers + 1, backward)
        assert.equal((2 * layers + 1) * ring(2, r - 1, stream) + 3 * ring(2, r - 1, rows), bytes)
        assert.equal((2 * layers + 1) * ring(2, r - 1, stream), back)
        for _, entry in ipairs(result.traffic) do assert.equal('all_reduce', entry.op) end
      end
    end)
  end

  it('megatron with sequence parallel: the same bytes as scatters and gathers', function()
    for r, result in ipairs(run('llama', 'megatron', 2, 2, 1, { sequence_parallel = true })) do
      local scatters, scattered = sum(result, 'forward', 'reduce_scatter', 2)
      local gathers, gathered = sum(result, 'forward', 'all_gather', 2)
      assert.same({ 2 * layers + 1, 2 * layers + 1 }, { scatters, gathers })
      assert.equal((2 * layers + 1) * ring(2, r - 1, stream), scattered + gathered)
      local back_scatters = sum(result, 'backward', 'reduce_scatter', 2)
      local back_gathers = sum(result, 'backward', 'all_gather', 2)
      assert.same({ 2 * layers + 1, 2 * layers + 1 }, { back_scatters, back_gathers })
      assert.equal(3, (sum(result, 'forward', 'all_reduce', 2)))
      assert.equal(0, (sum(result, 'backward', 'all_reduce', 2)))
    end
  end)
end)
