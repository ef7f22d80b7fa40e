-- Operators outside the table whose arguments come by keyword only in part: generated code calls
-- them as their schemas say, forward and when they run again under autograd.
local harness = require 'tests.lua.derivative.harness'
local examples = require 'nnscaler.verify.examples'
local lower = require 'nnscaler._C.lower'
local ops = require 'nnscaler.ops'
local trace = require 'nnscaler.trace'

local m = examples.maker(5)
local f = m.f

local function definite() -- symmetric, positive definite
  local x = f(4, 4)
  return ops.aten.matmul(x, x:t()) + ops.aten.eye(4, { dtype = 'float64' }) * 4
end

local cases = {
  linalg_cross = { { f(5, 3), f(5, 3) }, { f(3, 5), f(3, 5), { dim = 0 } } },
  linalg_solve = { { definite(), f(4, 2) }, { definite(), f(2, 4), { left = false } } },
  linalg_cholesky = { { definite() }, { definite(), { upper = true } } },
}

describe('keyword_only_operator', function()
  setup(function() require('nnscaler.log').set_level 'error' end)
  teardown(function() require('nnscaler.log').set_level 'info' end)

  for _, name in ipairs { 'linalg_cross', 'linalg_solve', 'linalg_cholesky' } do
    it(name .. ' has the gradients of autograd', function()
      for _, args in ipairs(cases[name]) do
        args.n = #args
        local problems = harness.check({ op = 'aten::' .. name, args = args, forms = { 'dense' } })
        assert.same({}, problems)
      end
    end)
  end

  it('is written with its keywords', function()
    local graph = trace(function(a, b) return ops.aten.linalg_cross(a, b, { dim = 0 }) end,
      { f(3, 5), f(3, 5) }, { training = false, arg_names = { 'a', 'b' } })
    local text = lower.lower(graph, {}):lua()
    assert.truthy(text:find('aten.linalg_cross(a, b, { dim = 0 })', 1, true), text)
  end)
end)
