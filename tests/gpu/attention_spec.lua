-- Attention on a GPU in 16 bits against its formula in float64 on the CPU: values and gradients
-- err by at most twice what ATen's own call on the GPU errs by.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local own = require('nnscaler.ops').nnscaler

local shapes = { { 2, 4, 64, 64, 64 }, { 1, 3, 33, 33, 128 }, { 2, 2, 128, 40, 16 } }

-- Output and gradients of q, k, v by autograd.
local function by_autograd(q, k, v, grad, causal)
  q, k, v = q:detach():requires_grad_(), k:detach():requires_grad_(), v:detach():requires_grad_()
  local out = aten.scaled_dot_product_attention(q, k, v, nil, 0, causal)
  out:backward(grad)
  return { out:detach(), q.grad, k.grad, v.grad }
end

local function error_of(x, truth)
  local wide = x:to('cpu'):to('float64')
  return (wide - truth):abs():amax():item() / truth:abs():amax():item()
end

describe('attention on a GPU', function()
  for _, dtype in ipairs { 'bfloat16', 'float16' } do
    for _, causal in ipairs { false, true } do
      it(dtype .. (causal and ', causal' or ''), function()
        if not T.has_cuda() then return pending 'LibTorch finds no GPU here' end
        local g = T.generator(3)
        for _, s in ipairs(shapes) do
          if not causal or s[3] == s[4] then
            local function randn(length)
              return T.randn({ s[1], s[2], length, s[5] }, { generator = g, dtype = 'float64' })
                :to(dtype)
            end
            local q, k, v, grad = randn(s[3]), randn(s[4]), randn(s[4]), randn(s[3])
            local truth = by_autograd(q:to 'float64', k:to 'float64', v:to 'float64',
              grad:to 'float64', causal)
            local at = { q:to 'cuda', k:to 'cuda', v:to 'cuda', grad:to 'cuda' }
            local peer = by_autograd(at[1], at[2], at[3], at[4], causal)
            local out, sums = own.attention(at[1], at[2], at[3], causal)
            local mine = { out,
              own.attention_backward(at[4], at[1], at[2], at[3], out, sums, causal) }
            for i, x in ipairs(mine) do
              assert.same(truth[i].shape, x.shape)
              assert.is_true(error_of(x, truth[i]) <= 2 * error_of(peer[i], truth[i]) + 1e-4)
            end
          end
        end
      end)
    end
  end
end)
