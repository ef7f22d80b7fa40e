--- Every fault, in every place, under every way of starting ranks, on 2 and 4 ranks.
local faults = require 'tests.cli.support.faults'

local launchers = { 'mpirun', 'torchrun', 'nnscaler run -n', 'variables set by hand' }
local cases = {}
for _, fault in ipairs { 'kill', 'stop' } do
  for _, where in ipairs { 'forward', 'collective', 'long', 'save' } do
    cases[#cases + 1] = { fault, where }
  end
end
for _, fault in ipairs { 'lua', 'cpp', 'exit' } do
  for _, where in ipairs { 'forward', 'collective', 'save' } do
    cases[#cases + 1] = { fault, where }
  end
end

describe('a rank that fails takes all with it', function()
  for _, launcher in ipairs(launchers) do
    for _, n in ipairs { 2, 4 } do
      for _, case in ipairs(cases) do
        -- Rank 0 holds the hub where no supervisor does.
        for _, who in ipairs(n == 2 and { 0, 1 } or { 2 }) do
          it(('%s, %d ranks: %s in %s, rank %d'):format(launcher, n, case[1], case[2], who),
            function() faults.check(launcher, n, case[1], case[2], who) end)
        end
      end
    end
  end
end)

describe('a rank that fails says first why', function()
  for _, launcher in ipairs(launchers) do
    for _, where in ipairs { 'setup', 'policy', 'data', 'hook', 'save' } do
      -- A policy runs on rank 0 alone.
      for _, who in ipairs(where == 'policy' and { 0 } or { 0, 1 }) do
        it(('%s: rank %d in %s'):format(launcher, who, where), function()
          faults.cause(launcher, 2, where, who)
        end)
      end
    end
  end
end)

describe('a step of 30 s', function()
  it('is waited for', function()
    for _, launcher in ipairs { 'nnscaler run -n', 'variables set by hand' } do
      local o = faults.run(launcher, 2, 'fault=sleep where=forward seconds=30')
      assert.equal(0, o.code, o.said)
    end
  end)
end)
