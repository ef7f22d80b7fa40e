--- Programs of any length: recurrent cells over 1,000 steps and 500 tensors alive at once train as
--- with eager=true under every kind of plan, their programs stay short, and the time that it takes
--- to write one grows with the number of steps, not with its square.
local lines_of = require 'tests.equivalence.support.lines'
local long = require 'tests.equivalence.plans.long_models'
local lower = require 'nnscaler._C.lower'
local models = require 'tests.equivalence.plans.models'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local trace = require 'nnscaler.trace'
local T = require 'nnscaler.tensor'

local MOST_LINES = 400 -- without the step

local plans = {
  { name = 'one device', policy = 'dp', plan = 1, ranks = 1 },
  { name = 'dp 2', policy = 'dp', plan = 1, ranks = 2 },
  { name = 'tp 2', policy = 'tp', plan = 2, ranks = 2 },
  { name = 'pp 2', policy = 'pp', plan = 2, ranks = 2 },
}

-- CPU seconds to trace the model, lower its graph and write the program; and the program's lines.
local function compiled(name, steps)
  local made = models.new(long.add(name, steps))
  made:assign_paths()
  local sample = models[('%s %d'):format(name, steps)].sample(T.generator(1))
  local begin = os.clock()
  local text = lower.lower((trace.trace(made, { sample }))):lua()
  return os.clock() - begin, lines_of(text)
end

for _, case in ipairs { { 'rnn', 1000 }, { 'lstm', 1000 }, { 'cat', 500 } } do
  local name, steps = unpack(case)
  describe(('many_tensors_live: %s over %d steps,'):format(name, steps), function()
    for _, plan in ipairs(plans) do
      it(plan.name, function()
        local results = on_ranks(plan.ranks, 'tests.equivalence.plans.hidden_rank', {
          module = 'tests.equivalence.plans.long_models',
          cells = { { model = ('%s %d'):format(name, steps), policy = plan.policy,
            plan = plan.plan, ranks = plan.ranks, micro = plan.ranks / plan.plan } },
        })
        for rank, list in ipairs(results) do
          local result = list[1]
          assert.is_nil(result.error)
          assert.equal('', table.concat(result.bad, '\n'), 'rank ' .. rank - 1)
          assert.is_true(result.lines <= MOST_LINES, ('%d lines'):format(result.lines))
        end
      end)
    end

    it('is written in a time that grows with the steps', function()
      local points, seconds = { steps / 4, steps / 2, steps, 2 * steps }, {}
      for i, count in ipairs(points) do
        local first, lines = compiled(name, count)
        seconds[i] = math.min(first, (compiled(name, count)))
        assert.is_true(lines <= MOST_LINES, ('%d lines'):format(lines))
      end
      -- The slope of a line through the logarithms.
      local x, y, xx, xy = 0, 0, 0, 0
      for i, count in ipairs(points) do
        local a, b = math.log(count), math.log(seconds[i])
        x, y, xx, xy = x + a, y + b, xx + a * a, xy + a * b
      end
      local slope = (#points * xy - x * y) / (#points * xx - x * x)
      print(('%s: %.3f s for %d steps, exponent %.2f'):format(name, seconds[3], steps, slope))
      assert.is_true(slope < 1.5, ('exponent %.2f'):format(slope))
    end)
  end)
end
