--- Odd models through the whole way (trace, lower, generated Lua, executor) against LibTorch's
--- autograd: losses, weights, results, gradients and buffers, in float64.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local models = require 'tests.lua.odd_models'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local function near(want, got, what)
  if type(want) == 'number' then
    local scale = math.max(1, math.abs(want))
    assert.is_true(math.abs(want - got) <= 1e-11 * scale, ('%s: %.17g expected, got %.17g')
      :format(what, want, got))
    return
  end
  assert.are.same(want.shape, got.shape, what)
  assert.are.equal(want.dtype, got.dtype, what)
  if want:numel() == 0 then return end
  local w, g = want:detach():double(), got:detach():double()
  local limit = 1e-11 * math.max(1e-2, w:abs():max():item())
  assert.is_true((w - g):abs():max():item() <= limit, what)
end

local function same(want, got, what)
  assert.are.equal(type(want), type(got), what)
  if type(want) == 'number' or T.is_tensor(want) then return near(want, got, what) end
  if type(want) ~= 'table' then return assert.are.equal(want, got, what) end
  assert.are.same(sorted_keys(want), sorted_keys(got), what)
  for _, key in ipairs(sorted_keys(want)) do same(want[key], got[key], what .. '.' .. key) end
end

-- Gradients in one table, buffers in another.
local function state(engine)
  local grads, buffers = {}, {}
  for _, p in ipairs(engine.parameters) do grads[p.name] = engine:grad(p.name) or 'none' end
  for _, b in ipairs(engine.buffers) do
    buffers[b.name] = b.data.kind == 'parameter' and b.data.data or b.data
  end
  return grads, buffers
end

describe('through both engines,', function()
  for _, case in ipairs(models) do
    it(case.name, function()
      local job = { seed = 21, device = 'cpu' }
      local eager, program = Eager.new(case.make(), job), Program.new(case.make(), job)
      local generator = T.generator(4)
      local first, second = case.sample(generator), case.sample(generator)
      for step = 0, 1 do
        local got, want
        for _, run in ipairs { { eager, 'want' }, { program, 'got' } } do
          run[1]:zero_grad()
          local result = run[1]:train_step({ first, second }, { step = step, seed = 21 })
          if run[2] == 'want' then want = result else got = result end
        end
        near(want.loss, got.loss, 'loss')
        near(want.weight, got.weight, 'weight')
        same(want.losses, got.losses, 'losses')
        same(want.outputs, got.outputs, 'outputs')
        local want_grads, want_buffers = state(eager)
        local got_grads, got_buffers = state(program)
        same(want_grads, got_grads, 'gradients')
        same(want_buffers, got_buffers, 'buffers')
      end
      local want, want_n, want_out = eager:eval_step(first, { step = 2, micro = 0 })
      local got, got_n, got_out = program:eval_step(first, { step = 2, micro = 0 })
      near(want, got, 'evaluation loss')
      near(want_n, got_n, 'evaluation weight')
      same(want_out, got_out, 'evaluation outputs')
    end)
  end
end)
