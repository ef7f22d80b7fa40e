--- Calls that test the derivatives of losses.
---@param add fun(names: string, ...: table)
---@param m table
return function(add, m)
  local T = require 'nnscaler.tensor'
  local f, t, pos, i = m.f, m.t, m.pos, m.i
  local A, B = m.A, m.B
  local function ints(list) return T.tensor(list, { dtype = 'int64' }) end
  local scores, classes, weight = f(6, 10), i(10, 6), pos(10)
  local holed = ints { 1, -100, 3, 9, -100, 0 }
  local forms = { 'dense', 'expanded', 'cut' } -- kernels of two dimensions take dense scores only
  local function probabilities(...) return require('nnscaler.functional').softmax(f(...), 1) end
  for reduction = 0, 2 do
    local r = reduction
    -- Of a target that broadcasts, autograd divides by the number of its own elements.
    local mean_fixed = r == 1 and { 2 } or nil
    add('cross_entropy_loss', { scores, classes, weight, r, fixed = { 3 } },
      { n = 4, scores, holed, nil, r },
      { n = 5, scores, ints { 1, 3, 3, 9, 2, 0 }, weight, r, 3, fixed = { 3 } },
      { n = 4, f(2, 10, 4), i(10, 2, 4), nil, r },
      { n = 4, f(2, 10, 2, 3), i(10, 2, 2, 3), nil, r },
      { n = 4, f(2, 5, 2, 3, 2), i(5, 2, 2, 3, 2), pos(5), r, fixed = { 3 } },
      { n = 4, f(10), i(10), nil, r }, { n = 4, scores, probabilities(6, 10), nil, r },
      { n = 4, scores, probabilities(6, 10), weight, r, fixed = { 3 } },
      { n = 4, f(2, 5, 3), probabilities(2, 5, 3), nil, r },
      { n = 6, scores, holed, nil, r, -100, 0.1 },
      { scores, holed, weight, r, -100, 0.1, fixed = { 3 } },
      { n = 6, scores, probabilities(6, 10), nil, r, -100, 0.1 },
      { n = 6, f(10), i(10), nil, r, -100, 0.1 },
      { n = 6, f(2, 5, 3), i(5, 2, 3), pos(5), r, -100, 0.2, fixed = { 3 } })
    add('nll_loss', { scores, classes, weight, r, fixed = { 3 } },
      { n = 5, scores, classes, nil, r, 3 },
      { n = 4, f(10), i(10), nil, r })
    add('nll_loss_nd', { scores, holed, weight, r, fixed = { 3 } },
      { n = 4, f(2, 10, 4), i(10, 2, 4), nil, r },
      { n = 4, f(2, 5, 2, 3), i(5, 2, 2, 3), nil, r, forms = forms },
      { n = 4, f(2, 5, 2, 3, 2), i(5, 2, 2, 3, 2), nil, r })
    add('nll_loss_forward', { scores, holed, weight, r, -100, fixed = { 3 } },
      { n = 5, scores, classes, nil, r, 3 })
    add('nll_loss2d_forward', { n = 5, f(2, 10, 4, 4), i(10, 2, 4, 4), nil, r, -100,
      forms = forms })
    add('mse_loss l1_loss', { f(A, B), f(A, B), r }, { t(A, B), t(A, B), r }, { f(), f(), r },
      { f(A, B), f(B), r, fixed = mean_fixed })
    add('smooth_l1_loss huber_loss', { f(A, B), f(A, B), r }, { t(A, B), t(A, B), r },
      { f(A, B), f(B), r, 0.5, fixed = mean_fixed }, { t(A, B), t(A, B), r, 2 })
    add('smooth_l1_loss', { f(A, B), f(A, B), r, 0 })
    add('kl_div', { f(A, B), pos(A, B), r }, { f(A, B), t(A, B):abs(), r, fixed = { 2 } },
      { f(A, B), pos(B), r },
      { f(A, B), f(A, B), r, { log_target = true } }, { f(B), f(A, B), r, { log_target = true } })
    add('binary_cross_entropy', { n = 4, pos(A, B), pos(A, B), nil, r },
      { pos(A, B), pos(A, B), pos(A, B), r, fixed = { 3 } }, { pos(A, B), pos(A, B), pos(B), r,
        fixed = { 3 } }, { n = 4, t(A, B):abs(), t(A, B):abs(), nil, r })
    add('binary_cross_entropy_with_logits', { n = 5, f(A, B), pos(A, B), nil, nil, r },
      { f(A, B), pos(A, B), pos(B), pos(B), r, fixed = { 3, 4 } },
      { n = 5, f(A, B), pos(A, B), nil, pos(B), r, fixed = { 3 } },
      { n = 5, f(A, B) * 100, t(A, B):abs(), pos(A, B), nil, r, fixed = { 3 } })
  end
  add('mse_loss l1_loss', { f(0, B), f(0, B), 2 }, { f(0, B), f(0, B), 0 })

  -- The scores of a linear layer in chunks; autograd's derivative of them is linear_scores'.
  local own = require('nnscaler.ops').nnscaler
  local rows, table_, plain = f(6, A), f(10, A), require('nnscaler.ops').aten
  local function two_scores(x, w, y, _)
    local all = x:matmul(w:t())
    return all:gather(-1, y:unsqueeze(-1)):squeeze(-1), plain.logsumexp(all, -1)
  end
  local function whole(x, w, y, reduction, ignored, _)
    return plain.cross_entropy_loss(x:matmul(w:t()):flatten(0, -2), y:flatten(), nil, reduction,
      ignored):reshape(reduction == 0 and y.shape or {})
  end
  -- The gradients that are made at once have none of their own.
  local function at_once(x, w, y, ignored, chunk, mask)
    local _, dx, dw = own.linear_cross_entropy_gradients(x:detach(), w:detach(), y, ignored, chunk,
      mask)
    return whole(x, w, y, 2, ignored), dx, dw
  end
  add('nnscaler::linear_scores', { rows, table_, classes, 4, outputs = 2, reference = two_scores },
    { f(2, 3, A), table_, i(10, 2, 3), 9, outputs = 2, reference = two_scores })
  for _, r in ipairs { 0, 2 } do
    add('nnscaler::linear_cross_entropy', { rows, table_, holed, r, -100, 4, reference = whole },
      { f(2, 3, A), table_, i(10, 2, 3), r, 3, 1, reference = whole })
  end
  add('nnscaler::linear_cross_entropy_gradients',
    { rows, table_, holed, -100, 4, { true, true, true }, reference = at_once })
end
