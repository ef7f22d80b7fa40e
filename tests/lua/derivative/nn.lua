--- Calls that test the derivatives of products, normalisations, dropout and attention.
local T = require 'nnscaler.tensor'

local linear = require('nnscaler.ops').aten.linear

local function products(add, m)
  local f, z = m.f, m.z
  local A, B, C = m.A, m.B, m.C
  add('linear', { f(2, A, B), f(C, B) }, { f(A, B), f(C, B), f(C) }, { f(A, B), f(B) },
    { f(B), f(C, B), f(C) }, { f(B), f(C, B) }, { f(0, B), f(C, B), f(C) },
    { f(A, 0), f(C, 0), f(C) }, { f(2, A, B), f(B) }, { f(B), f(B) },
    { f(2, 3, A, B), f(C, B), f(C) })
  add('nnscaler::tiled_linear',
    { m.f32(2, A, B), m.f32(C, B), tolerance = 1e-5, reference = linear, float32 = true },
    { m.f32(A, B), m.f32(C, B), m.f32(C), tolerance = 1e-5, reference = linear, float32 = true },
    { m.f32(0, B), m.f32(C, B), m.f32(C), tolerance = 1e-5, reference = linear, float32 = true })
  add('matmul', { f(A, B), f(B, C) }, { f(2, A, B), f(B, C) }, { f(2, 1, A, B), f(3, B, C) },
    { f(B), f(B) }, { f(A, B), f(B) }, { f(B), f(2, B, C) }, { f(B), f(B, C) },
    { f(2, A, B), f(B) },
    { f(0, B), f(B, C) }, { f(2, A, 0), f(2, 0, C) }, { f(A, B), f(2, B, C) },
    { f(2, 3, A, B), f(2, 3, B, C) }, { z(A, B), z(B, C) })
  add('mm', { f(A, B), f(B, C) }, { f(0, B), f(B, C) }, { f(A, 0), f(0, C) }, { z(A, B), z(B, C) })
  add('bmm', { f(2, A, B), f(2, B, C) }, { f(0, A, B), f(0, B, C) }, { z(2, A, B), z(2, B, C) })
  add('mv', { f(A, B), f(B) }, { f(0, B), f(B) })
  add('dot', { f(B), f(B) }, { f(0), f(0) })
  add('outer', { f(A), f(B) }, { f(0), f(B) })
  add('addmm', { f(C), f(A, B), f(B, C) }, { f(A, C), f(A, B), f(B, C), { beta = 0.5, alpha = 2 } },
    { f(1, C), f(A, B), f(B, C) }, { f(), f(A, B), f(B, C) },
    { f(A, C), f(A, B), f(B, C), { beta = 0 } })
  add('baddbmm', { f(2, A, C), f(2, A, B), f(2, B, C) }, { f(A, 1), f(2, A, B), f(2, B, C),
    { beta = 0.5, alpha = 2 } })
end

local function attention(add, m)
  local f, b = m.f, m.b
  local q, k, v = f(2, 3, 4, 5), f(2, 3, 6, 5), f(2, 3, 6, 2)
  local flat = f(2, 3, 6, 5)
  add('scaled_dot_product_attention', { q, k, v }, { q, k, flat }, { q, k, flat, f(4, 6) },
    { q, k, flat, f(4, 6), fixed = { 4 } }, { q, k, v, b(4, 6):logical_or(m.first(4, 6)) },
    { q, k, flat, b(4, 6):logical_or(m.first(4, 6)) }, { q, k, flat, b(2, 1, 4, 6) },
    { flat, flat, flat, { is_causal = true } }, { q, k, v, { is_causal = true } },
    { q, k, flat, f(2, 1, 4, 6) }, { q, k, flat, { scale = 0.3 } },
    { m.f32(2, 3, 4, 8), m.f32(2, 3, 6, 8), m.f32(2, 3, 6, 8), tolerance = 1e-5 },
    { q, k, v, { scale = 2 } },
    { f(2, 4, 4, 5), f(2, 2, 6, 5), f(2, 2, 6, 5), { enable_gqa = true } },
    { f(4, 5), f(6, 5), f(6, 5) }, { f(3, 4, 5), f(3, 6, 5), f(3, 6, 2) },
    { n = 5, q, k, v, nil, 0.4 }, { n = 6, flat, flat, flat, nil, 0.4, true })
  local flash = require('nnscaler.ops').aten._scaled_dot_product_flash_attention_for_cpu
  local function reference(query, key, value, is_causal, options)
    return flash(query:contiguous(), key:contiguous(), value:contiguous(), 0, is_causal or false,
      options or { scale = query.shape[4] ^ -0.5 })
  end
  add('nnscaler::attention', { q, k, flat, reference = reference },
    { flat, flat, flat, true, { scale = 0.5 }, reference = reference })
  -- float64 goes by the composed operator, which gives no sums.
  local function dropped(query, key, value, p, causal, scale, ...)
    local out = require('nnscaler.ops').nnscaler.attention_dropout(query, key, value, nil, p,
      causal, scale, ...)
    return out, out:select(3, 0):mul(0):detach()
  end
  add('nnscaler::dropped_attention',
    { q, k, flat, 0.5, false, nil, 'fc:attention#0', 7, 3, 1, n = 10, reference = dropped },
    { flat, flat, flat, 0.3, true, 0.5, 'fc:attention#0', 7, 3, 1, n = 10, reference = dropped })
  -- ATen's kernel takes dense rows for granted.
  local forms = { 'dense', 'expanded', 'turned', 'cut' }
  add('_scaled_dot_product_flash_attention_for_cpu', { q, k, flat, forms = forms },
    { q, k, flat, 0, false, { attn_mask = f(2, 1, 4, 6) }, fixed = { 4 }, forms = forms },
    { flat, flat, flat, 0, true, { scale = 0.5 }, forms = forms })
  add('nnscaler::dropout', { f(4, 6), 0.5, 'fc:dropout#0', 7, 3, 1 },
    { f(4, 6), 0.3, 'fc:dropout#0', 7, 3, 1, { 2, 0 }, { 8, 6 } })
  add('dropout', { f(4, 6), 0.5, true }, { f(4, 6), 0.5, false }, { f(4, 6), 0, true },
    { f(0, 6), 0.5, true }, { f(4, 6), 1, true })
  add('randn_like rand_like bernoulli', { f(4, 6) })
  add('nnscaler::normal_like nnscaler::uniform_like',
    { f(4, 6), nil, 'fc:noise#0', 7, 3, 1, n = 6 })
  add('nnscaler::bernoulli', { f(4, 6), 'fc:bernoulli#0', 7, 3, 1 })
end

local function norms(add, m)
  local f, pos = m.f, m.pos
  local A, B = m.A, m.B
  add('layer_norm', { f(2, A, 6), { 6 }, f(6), f(6) }, { f(2, A, B), { A, B } },
    { f(A, 6), { 6 }, f(6) },
    { n = 4, f(A, 6), { 6 }, nil, f(6) }, { f(0, 6), { 6 }, f(6), f(6) },
    { f(A, 6), { 6 }, f(6), f(6), 0.1 })
  add('rms_norm', { f(2, A, 6), { 6 }, f(6) }, { f(A, 6), { 6 } },
    { f(2, A, B), { A, B }, f(A, B), 0.1 },
    { f(0, 6), { 6 }, f(6) }, { f(6), { 6 }, f(6) })
  add('group_norm', { f(4, 6, 2, 2), 3, f(6), f(6) }, { f(4, 6), 2 },
    { f(2, 6, 5), 6, f(6), f(6), 0.1 },
    { f(2, 6, 3), 1, f(6) }, { f(0, 6, 3), 3, f(6), f(6) })
  local x, mean, var = f(4, 6, 2, 3), f(6), pos(6)
  add('batch_norm', { x, f(6), f(6), mean, var, false, 0.1, 1e-5, false, fixed = { 4, 5 } },
    { x, f(6), f(6), mean, var, true, 0.1, 1e-5, false, fixed = { 4, 5 },
      buffers = { [4] = true, [5] = true } },
    { n = 9, x, nil, nil, nil, nil, true, 0.1, 1e-5, false },
    { n = 9, x, f(6), f(6), nil, nil, true, 0.1, 0.1, false },
    { n = 9, f(4, 6), nil, nil, mean, var, false, 0.1, 1e-5, false, fixed = { 2, 3 } },
    { n = 9, f(4, 6, 5), f(6), nil, mean, var, true, 0.1, 1e-5, false, fixed = { 3, 4 },
      buffers = { [3] = true, [4] = true } })
  add('native_batch_norm', { x, f(6), f(6), mean, var, false, 0.1, 1e-5, fixed = { 4, 5 } },
    { x, f(6), f(6), mean, var, true, 0.1, 1e-5, fixed = { 4, 5 },
      buffers = { [4] = true, [5] = true } })
  add('instance_norm', { x, f(6), f(6), mean, var, false, 0.1, 1e-5, false, fixed = { 4, 5 } },
    { x, f(6), f(6), mean, var, true, 0.1, 1e-5, false, fixed = { 4, 5 },
      buffers = { [4] = true, [5] = true } },
    { n = 9, f(4, 6, 5), f(6), f(6), nil, nil, true, 0.1, 0.1, false })
end

local function experts(add, m)
  local f, i = m.f, m.i
  local A = m.A
  local aten = require('nnscaler.ops').aten
  local counts = T.tensor({ 2, 0, 3 }, { dtype = 'int64' })
  -- Each expert's rows one after another; the rows behind them give zeros.
  local function one_by_one(x, w, n)
    local rows, start = {}, 0
    for e, count in ipairs(n:tolist()) do
      rows[e] = x:narrow(0, start, count):matmul(w[e - 1]:t())
      start = start + count
    end
    rows[#rows + 1] = x:narrow(0, start, x.shape[1] - start):matmul(w[0]:t()) * 0
    return aten.cat(rows, 0)
  end
  add('nnscaler::grouped_linear', { f(7, A), f(3, 4, A), counts, reference = one_by_one },
    { f(5, A), f(3, 4, A), counts, reference = one_by_one })
  -- Every expert for every token, by the weight that a token gives it.
  local function all_experts(x, index, weight, up, down, gate, activation)
    local y
    for e = 0, up.shape[1] - 1 do
      local hidden = x:matmul(up[e]:t())
      local act = aten[activation or 'silu']
      hidden = gate and act(x:matmul(gate[e]:t())) * hidden or act(hidden)
      local part = hidden:matmul(down[e]:t())
        * (weight * index:eq(e):to 'float64'):sum(-1, true)
      y = y and y + part or part
    end
    return y
  end
  local none = i(4, 2, A, 2) - 1 -- -1 is no expert; nobody chooses the last
  add('nnscaler::experts',
    { f(2, A, 3), none, f(2, A, 2), f(4, 5, 3), f(4, 3, 5), f(4, 5, 3),
      reference = all_experts },
    { n = 7, f(A, 3), i(4, A, 1), f(A, 1), f(4, 5, 3), f(4, 3, 5), nil, 'relu',
      reference = all_experts })
end

---@param add fun(names: string, ...: table)
---@param m table
return function(add, m)
  experts(add, m)
  products(add, m)
  attention(add, m)
  norms(add, m)
end
