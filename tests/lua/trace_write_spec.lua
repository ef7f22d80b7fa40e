--- In-place operators become values: every case is run eagerly and through its graph.
local T = require 'nnscaler.tensor'
local trace = require 'nnscaler.trace'
local cases = require 'tests.lua.inplace_cases'
local run = require 'tests.lua.graph_eval'

local function inputs_of(case)
  local generator, args, leaves = T.generator(3), {}, {}
  for i, shape in ipairs(case.shapes) do
    args[i] = T.randn(shape, { generator = generator })
    leaves[tostring(i)] = args[i]
  end
  return args, leaves
end

describe('in-place operators under trace', function()
  for _, case in ipairs(cases) do
    it(case.name, function()
      local args, leaves = inputs_of(case)
      local graph = trace(case.program, args, { training = false })
      assert.is_nil(graph:text():match '_%(' , 'an in-place operator is in the graph')
      local expected = { case.program(unpack(args)) }
      local values, got = run(graph, leaves), {}
      for i, output in ipairs(graph:outputs()) do got[i] = values[output.value] end
      assert.are.equal(#expected, #got)
      for i, e in ipairs(expected) do
        assert.are.equal(e.dtype, got[i].dtype)
        assert.are.same(e:tolist(), got[i]:tolist())
      end
    end)
  end
end)
