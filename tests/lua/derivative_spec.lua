-- Every derivative rule against LibTorch's autograd, in float64 over two draws of shapes and
-- numbers; what has no rule by way of its fallback.
local C = require 'nnscaler._C.graph'
local cases = require 'tests.lua.derivative.cases'
local harness = require 'tests.lua.derivative.harness'
local lower = require 'nnscaler._C.lower'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local seeds = { 1, 2 } -- the second in one form only
local draws = {}
for i, seed in ipairs(seeds) do draws[i] = cases.all(seed, true) end

describe('the derivative of', function()
  setup(function() require('nnscaler.log').set_level 'error' end)
  teardown(function() require('nnscaler.log').set_level 'info' end)

  for _, rule in ipairs(lower.rules()) do
    local remote = rule.op:find '^comm::' -- on several ranks: tests/equivalence/plans
    if not remote and (rule.kind ~= 'constant' or draws[1][rule.op]) then
      it(rule.op, function()
        local problems = {}
        for i = 1, #seeds do
          local calls = draws[i][rule.op]
          assert.is_table(calls, 'no case in tests/lua/derivative')
          for k, call in ipairs(calls) do
            local ok, found, _, fallbacks = pcall(harness.check, call, i > 1)
            if not ok then found = { tostring(found) } end
            for _, problem in ipairs(found) do
              problems[#problems + 1] = ('draw %d, case %d of %s: %s')
                :format(i, k, call.op, problem)
            end
            local used = ok and table.concat(sorted_keys(fallbacks), ' ') or ''
            if (used ~= '') ~= (call.fallback or false) then
              problems[#problems + 1] = ('case %d of %s: run again under autograd: %s'):format(k,
                call.op, used == '' and 'nothing' or used)
            end
          end
        end
        assert.equal('', table.concat(problems, '\n'))
      end)
    end
  end

  it('is there for these operators of the table', function()
    local rules, counts = {}, { rule = 0, composite = 0, constant = 0 }
    for _, rule in ipairs(lower.rules()) do rules[rule.op] = rule.kind end
    local without = {}
    local all = C.ops()
    for _, row in ipairs(all) do
      local kind = rules[row.name] or rules[row.name:match '^[^.]+']
      if kind then
        counts[kind] = counts[kind] + 1
      elseif not (row.constant or row.random) then -- a trace refuses random ones without a rule
        without[#without + 1] = row.name:gsub('^aten::', '')
      end
    end
    print(('  %d operators: %d rules, %d made of others, %d without derivative, %d by autograd: %s')
      :format(#all, counts.rule, counts.composite, counts.constant, #without,
        table.concat(without, ' ')))
    assert.is_true(counts.rule > 120)
  end)
end)
