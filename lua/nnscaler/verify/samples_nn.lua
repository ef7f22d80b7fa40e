--- Example calls of products, attention, normalisations, convolutions, pooling and losses.
local function products(add, m)
  local f, b = m.f, m.b
  add('linear', { f(2, 4, 6), f(8, 6) }, { f(4, 6), f(8, 6), f(8) }, { f(4, 6), f(6) })
  add('matmul', { f(4, 6), f(6, 8) }, { f(2, 4, 6), f(6, 8) }, { f(2, 1, 4, 6), f(3, 6, 8) },
    { f(6), f(6) }, { f(4, 6), f(6) }, { f(6), f(2, 6, 4) })
  add('mm', { f(4, 6), f(6, 8) })
  add('bmm', { f(2, 4, 6), f(2, 6, 8) })
  add('mv', { f(4, 6), f(6) })
  add('dot vdot', { f(6), f(6) })
  add('outer ger', { f(4), f(6) })
  add('addmm', { f(8), f(4, 6), f(6, 8) }, { f(4, 8), f(4, 6), f(6, 8), { beta = 0.5, alpha = 2 } },
    { f(1, 8), f(4, 6), f(6, 8) })
  add('baddbmm', { f(2, 4, 8), f(2, 4, 6), f(2, 6, 8) }, { f(4, 8), f(2, 4, 6), f(2, 6, 8) })
  add('einsum', { 'bik,kj->bij', { f(2, 4, 6), f(6, 8) } }, { 'ij,ij', { f(4, 6), f(4, 6) } },
    { '...ik,...jk->...ij', { f(2, 4, 6), f(2, 8, 6) } }, { 'ij->ji', { f(4, 6) } })

  local q, k, v = f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 6)
  add('scaled_dot_product_attention', { q, k, v },
    { q, k, v, b(6, 10):logical_or(b(6, 10):mul(0):eq(0)) },
    { f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), { is_causal = true } },
    { q, k, v, f(2, 1, 6, 10) },
    { f(2, 4, 6, 8), f(2, 2, 10, 8), f(2, 2, 10, 8), { enable_gqa = true } })
  local same = f(2, 4, 10, 8)
  add('_scaled_dot_product_flash_attention_for_cpu', { q, k, same },
    { q, k, same, 0, false, { attn_mask = f(2, 1, 6, 10) } },
    { f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), 0, true })
  local out, lse = require('nnscaler.ops').aten._scaled_dot_product_flash_attention_for_cpu(q, k,
    same)
  add('_scaled_dot_product_flash_attention_for_cpu_backward',
    { f(2, 4, 6, 8), q, k, same, out, lse, 0, false })
  add('nnscaler::attention', { q, k, same }, { f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), true })
  add('nnscaler::attention_backward', { f(2, 4, 6, 8), q, k, same, out, lse })
  add('nnscaler::attention_dropout', { n = 11, q, k, v, nil, 0.5, false, nil, 'a#0', 7, 3, 1 },
    { n = 11, q, k, v, f(2, 1, 6, 10), 0.5, false, nil, 'a#0', 7, 3, 1 })
  local all = { true, true, true, false }
  add('nnscaler::attention_dropout_backward',
    { n = 13, f(2, 4, 6, 6), q, k, v, nil, 0.5, false, nil, 'a#0', 7, 3, 1, all })
end

local function norms(add, m)
  local f, pos = m.f, m.pos
  add('layer_norm', { f(2, 4, 6), { 6 }, f(6), f(6) }, { f(2, 4, 6), { 4, 6 } })
  add('rms_norm', { f(2, 4, 6), { 6 }, f(6) }, { f(4, 6), { 6 } })
  add('native_layer_norm', { f(2, 4, 6), { 6 }, f(6), f(6), 1e-5 },
    { n = 5, f(4, 6), { 6 }, nil, nil, 1e-5 })
  add('_fused_rms_norm nnscaler::rms_norm', { f(2, 4, 6), { 6 }, f(6), 1e-5 })
  add('nnscaler::rms_norm_backward',
    { f(2, 4, 6), f(2, 4, 6), { 6 }, pos(2, 4, 1), f(6), { true, true } },
    { n = 6, f(4, 6), f(4, 6), { 6 }, pos(4, 1), nil, { true, false } })
  add('nnscaler::linear_input', { f(2, 3, 6), f(6, 4) }, { f(6), f(6, 4) })
  add('nnscaler::linear_weight', { f(2, 3, 6), f(2, 3, 4) }, { f(6), f(4) })
  add('native_layer_norm_backward',
    { f(2, 4, 6), f(2, 4, 6), { 6 }, f(2, 4, 1), pos(2, 4, 1), f(6), f(6), { true, true, true } },
    { n = 8, f(4, 6), f(4, 6), { 6 }, f(4, 1), pos(4, 1), f(6), nil, { true, true, false } })
  local x = f(4, 6, 2, 2)
  add('batch_norm', { x, f(6), f(6), f(6), pos(6), true, 0.1, 1e-5, false },
    { x, f(6), f(6), f(6), pos(6), false, 0.1, 1e-5, false },
    { n = 9, x, nil, nil, nil, nil, true, 0.1, 1e-5, false })
  add('instance_norm', { x, f(6), f(6), f(6), pos(6), true, 0.1, 1e-5, false })
  add('native_batch_norm _native_batch_norm_legit', { x, f(6), f(6), f(6), pos(6), true, 0.1,
    1e-5 },
    { x, f(6), f(6), f(6), pos(6), false, 0.1, 1e-5 })
  add('_native_batch_norm_legit.no_stats', { x, f(6), f(6), true, 0.1, 1e-5 })
  add('_native_batch_norm_legit_functional', { x, f(6), f(6), f(6), pos(6), true, 0.1, 1e-5 })
  add('native_batch_norm_backward',
    { n = 10, f(4, 6, 2, 2), x, f(6), nil, nil, f(6), pos(6), true, 1e-5, { true, true, true } },
    { n = 10, f(4, 6, 2, 2), x, f(6), f(6), pos(6), nil, nil, false, 1e-5, { true, true, true } })
  add('group_norm', { x, 3, f(6), f(6) })
  add('native_group_norm', { x, f(6), f(6), 4, 6, 4, 3, 1e-5 })
  add('native_group_norm_backward',
    { f(4, 6, 2, 2), x, f(4, 3), pos(4, 3), f(6), 4, 6, 4, 3, { true, true, true } })
end

local function images(add, m)
  local f = m.f
  add('conv1d', { f(2, 4, 9), f(6, 4, 3) }, { f(2, 4, 9), f(6, 2, 3), f(6), { 2 }, { 1 },
    { 1 }, 2 })
  add('conv2d', { f(2, 4, 8, 9), f(6, 4, 3, 3) }, { f(2, 4, 8, 9), f(6, 4, 3, 3), f(6), { 2, 1 },
    { 1, 0 } },
    { n = 7, f(2, 4, 8, 9), f(6, 2, 3, 3), nil, { 1, 1 }, { 0, 0 }, { 2, 1 }, 2 },
    { f(4, 8, 8), f(6, 4, 3, 3) },
    { op = 'conv2d.padding', n = 5, f(2, 4, 8, 9), f(6, 4, 3, 3), nil, { 1, 1 }, 'same' })
  add('conv3d', { f(2, 4, 4, 5, 6), f(6, 4, 2, 2, 2) })
  add('conv_transpose1d', { f(2, 4, 5), f(4, 6, 3) })
  add('conv_transpose2d', { f(2, 4, 5, 5), f(4, 6, 3, 3), f(6), { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { n = 7, f(2, 4, 5, 5), f(4, 3, 3, 3), nil, { 1, 1 }, { 0, 0 }, { 0, 0 }, 2 })
  add('conv_transpose3d', { f(2, 4, 3, 3, 3), f(4, 6, 2, 2, 2) })
  local none, one = { 0, 0 }, { 1, 1 }
  add('convolution', { n = 9, f(2, 4, 8, 8), f(6, 4, 3, 3), nil, one, one, one, false, none, 1 },
    { n = 9, f(2, 4, 5, 5), f(4, 6, 3, 3), nil, one, none, one, true, none, 1 })
  add('convolution_backward',
    { n = 11, f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3), nil, one, none, one, false, none, 1,
      { true, true, true } },
    { f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3), { 6 }, one, none, one, false, none, 1,
      { true, true, true } },
    { n = 11, f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3), nil, one, none, one, false, none, 1,
      { false, true, false } })

  add('max_pool1d avg_pool1d', { f(2, 4, 9), { 2 } })
  add('max_pool2d', { f(2, 4, 5, 7), { 2, 2 } }, { f(2, 4, 5, 7), { 3, 2 }, { 2, 2 }, { 1, 0 },
    { 1, 1 }, true })
  add('avg_pool2d', { f(2, 4, 5, 7), { 2, 2 } }, { f(2, 4, 5, 7), { 3, 3 }, { 2, 2 },
    { 1, 1 }, true })
  add('max_pool2d_with_indices', { f(2, 4, 5, 7), { 2, 2 } })
  local image = f(2, 4, 4, 6)
  local _, indices = require('nnscaler.ops').aten.max_pool2d_with_indices(image, { 2, 2 })
  add('max_pool2d_with_indices_backward',
    { f(2, 4, 2, 3), image, { 2, 2 }, { 2, 2 }, none, one, false, indices })
  add('avg_pool2d_backward',
    { n = 8, f(2, 4, 2, 3), image, { 2, 2 }, { 2, 2 }, none, false, true, nil })
  add('adaptive_avg_pool1d', { f(2, 4, 9), { 3 } })
  add('adaptive_avg_pool2d _adaptive_avg_pool2d', { f(2, 4, 5, 7), { 2, 3 } })
  add('_adaptive_avg_pool2d_backward', { f(2, 4, 2, 3), f(2, 4, 5, 7) })
  add('upsample_nearest2d', { f(2, 4, 3, 5), { 6, 10 } },
    { n = 3, op = 'upsample_nearest2d.vec', f(2, 4, 3, 5), nil, { 2, 2 } })
  add('upsample_bilinear2d', { f(2, 4, 3, 5), { 6, 10 }, false })
  add('upsample_nearest2d_backward', { f(2, 4, 6, 10), { 6, 10 }, { 2, 4, 3, 5 } })
  add('upsample_bilinear2d_backward', { f(2, 4, 6, 10), { 6, 10 }, { 2, 4, 3, 5 }, false })
end

local function losses(add, m)
  local f, pos, i = m.f, m.pos, m.i
  local T = require 'nnscaler.tensor'
  local scores, classes, weight = f(6, 10), i(10, 6), pos(10)
  for reduction = 0, 2 do
    add('cross_entropy_loss', { scores, classes, weight, reduction },
      { n = 4, f(2, 10, 4), i(10, 2, 4), nil, reduction },
      { n = 4, scores, pos(6, 10), nil, reduction })
    add('nll_loss nll_loss_nd', { scores, classes, weight, reduction })
    add('nll_loss2d', { n = 4, f(2, 10, 4, 4), i(10, 2, 4, 4), nil, reduction })
    add('nll_loss_forward', { scores, classes, weight, reduction, -100 },
      { n = 5, scores, classes, nil, reduction, 3 })
    add('nll_loss2d_forward', { n = 5, f(2, 10, 4, 4), i(10, 2, 4, 4), nil, reduction, -100 })
    local each = reduction == 0
    local total = T.scalar(5, 'float64')
    add('nll_loss_backward', { each and f(6) or f(), scores, classes, weight, reduction, -100,
      total })
    add('nll_loss2d_backward', { n = 7, each and f(2, 4, 4) or f(), f(2, 10, 4, 4), i(10, 2, 4, 4),
      nil,
      reduction, -100, total })
    add('nnscaler::cross_entropy', { scores, classes, reduction },
      { scores, classes, reduction, 3, 0.1 })
    add('nnscaler::cross_entropy_backward',
      { each and f(6) or f(), scores, classes, f(6), total, reduction, 3, 0.1 })
    add('mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div',
      { f(4, 6), f(4, 6), reduction })
    add('binary_cross_entropy', { n = 4, pos(4, 6), pos(4, 6), nil, reduction })
    add('binary_cross_entropy_with_logits', { n = 5, f(4, 6), pos(4, 6), nil, nil, reduction },
      { f(4, 6), pos(4, 6), pos(6), pos(6), reduction })
    local gradient = each and f(4, 6) or f()
    add('mse_loss_backward', { gradient, f(4, 6), f(4, 6), reduction })
    add('smooth_l1_loss_backward huber_loss_backward', { gradient, f(4, 6), f(4, 6), reduction, 1 })
    add('binary_cross_entropy_backward', { n = 5, gradient, pos(4, 6), pos(4, 6), nil, reduction })
  end
  add('_assert_tensor_metadata', { f(4, 6) })
end

---@param add fun(names: string, ...: table)
---@param m nnscaler.verify.Maker
return function(add, m)
  products(add, m)
  norms(add, m)
  images(add, m)
  losses(add, m)
end
