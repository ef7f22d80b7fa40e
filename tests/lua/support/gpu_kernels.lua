--- What our kernels for GPUs are held against: formulas in float64 of the same numbers, and the
--- CPU's draws. A result may err by twice the rounding of the exact one to its type, row by row.
local T = require 'nnscaler.tensor'
local assert = require 'luassert'
local aten = require('nnscaler.ops').aten
local ours = require('nnscaler.ops').nnscaler

local dtypes = { 'float32', 'bfloat16', 'float16' }
local smallest = { float32 = 2 ^ -137, bfloat16 = 2 ^ -130, float16 = 2 ^ -24 }
local g

local function wide(x) return x and x:to 'float64' end

-- Numbers that the dtype has; rows are large, tiny and usual ones in turn.
local function numbers(dtype, ...)
  local x = T.randn({ ... }, { generator = g, dtype = 'float64' })
  if x:dim() > 1 and x:numel() > 0 then
    local turn = T.arange(x:numel() / x:size(-1)):remainder(3):view { -1, 1 }
    local scale = T.full({}, 1e4, { dtype = 'float64' })
    local by = aten.where(turn:eq(1), scale, aten.where(turn:eq(2), 1 / scale, scale / scale))
    x = (x:view { -1, x:size(-1) } * by):view { ... }
  end
  return x:to(dtype)
end
local function usual(dtype, ...)
  return T.randn({ ... }, { generator = g, dtype = 'float64' }):to(dtype)
end

-- `slack`: how much arithmetic in float32 may add, relative to the greatest of the row; `terms`: to
-- that of what the result is a difference of.
local function near(truth, x, slack, what, terms)
  x = x:to 'cpu'
  assert.same(truth.shape, x.shape)
  if x:numel() == 0 then return end
  local function rows(y) return y:dim() == 0 and y:view { 1, 1 } or y:reshape { -1, y:size(-1) } end
  local rounded = (truth:to(x.dtype):to 'float64' - truth):abs()
  local limit = rows(rounded):amax(-1) * 2
    + rows(terms or truth):abs():amax(-1) * slack + smallest[x.dtype]
  local apart = rows((wide(x) - truth):abs()):amax(-1)
  local worst = (apart / limit):amax():item()
  assert(worst <= 1, ('%s: %.3g of what it may err'):format(what or '', worst))
end

local function norm_of(x, w, b, eps, centred)
  local mean = centred and x:mean({ -1 }, true) or x:sum({ -1 }, true) * 0
  local rstd = ((x - mean):square():mean({ -1 }, true) + eps):rsqrt()
  local y = (x - mean) * rstd
  if w then y = y * w end
  if b then y = y + b end
  return y, mean, rstd
end
local function norm_back(d, x, w, mean, rstd, centred)
  local unit = (x - mean) * rstd
  local flat = { -1, x:size(-1) }
  local dw, db = (d * unit):view(flat):sum(0), d:view(flat):sum(0)
  if w then d = d * w end
  local turn = d - unit * (d * unit):mean({ -1 }, true)
  if centred then turn = turn - d:mean({ -1 }, true) end
  return turn * rstd, dw, db
end

---@param it fun(name: string, test: fun()) that of the spec, which may skip
---@param run fun(fn: function, ...: any): any calls fn with tensors on the device, returns results
return function(it, run)
  local function each_type(what, test)
    for _, dtype in ipairs(dtypes) do
      it(what .. ', ' .. dtype, function()
        g = T.generator(6)
        test(dtype)
      end)
    end
  end

  local shapes = { { 2, 1 }, { 3, 7 }, { 2, 2, 33 }, { 4, 257 }, { 3, 4096 }, { 2, 12296 },
    { 1100, 24 }, { 0, 8 } }

  for _, centred in ipairs { false, true } do
    local name = centred and 'layer_norm' or 'rms_norm'

    -- Calls of the two forms in one order: sum or nil, out, mean or nil, rstd.
    local function forward(x, y, n, w, b, eps)
      if centred and y then return run(ours.add_layer_norm, x, y, n, w, b, eps) end
      if centred then return nil, run(ours.layer_norm, x, n, w, b, eps) end
      local sum, out, rstd
      if y then
        sum, out, rstd = run(ours.add_rms_norm, x, y, n, w, eps)
      else
        out, rstd = run(ours.rms_norm, x, n, w, eps)
      end
      return sum, out, nil, rstd
    end
    local function backward(d, x, n, mean, rstd, w, b, mask, y)
      if centred then
        return run(ours.layer_norm_backward, d, x, n, mean, rstd, w, b, mask, y)
      end
      return run(ours.rms_norm_backward, d, x, n, rstd, w, { mask[1], mask[2] }, y)
    end

    each_type(name .. ' and its derivative', function(dtype)
      for _, shape in ipairs(shapes) do
        local n = { shape[#shape] }
        for _, affine in ipairs { true, false } do
          for _, added in ipairs { true, false } do
            local x, d = numbers(dtype, unpack(shape)), usual(dtype, unpack(shape))
            local y = added and numbers(dtype, unpack(shape)) or nil
            local w, b = affine and usual(dtype, unpack(n)) or nil, nil
            if affine and centred then b = usual(dtype, unpack(n)) end
            local what = ('%s %s'):format(table.concat(shape, 'x'), added and 'added' or '')
            local sum, out, mean, rstd = forward(x, y, n, w, b, 1e-5)
            if added then
              near(wide(x) + wide(y), sum, 0, what)
              x = sum:to 'cpu'
            end
            local truth, centre, scale = norm_of(wide(x), wide(w), wide(b), 1e-5, centred)
            near(truth, out, 3e-6, what .. ' out')
            assert.equal('float32', rstd.dtype)
            near(scale, rstd, 2e-6, what .. ' rstd')
            -- The mean of large numbers that cancel is as good as they are.
            if centred and shape[1] > 0 then
              assert.is_true((wide(mean:to 'cpu') - centre):abs():amax():item()
                <= 1e-6 * wide(x):abs():amax():item())
            end
            local mask = { true, affine, affine and centred }
            local dx, dw, db = backward(d, x, n, mean, rstd, w, b, mask, y)
            local tx, tw, tb = norm_back(wide(d), wide(x), wide(w), centre, scale, centred)
            local terms = wide(d) * (affine and wide(w) or 1) * scale
            if added then tx, terms = tx + wide(y), terms:abs() + wide(y):abs() end
            near(tx, dx, 1e-5, what .. ' dx', terms)
            if affine then near(tw, dw, 1e-5, what .. ' dw') end
            if mask[3] then near(tb, db, 1e-5, what .. ' db') end
          end
        end
      end
    end)

    each_type(name .. ' gives the gradients that are asked for alone', function(dtype)
      local x, d, w = usual(dtype, 5, 24), usual(dtype, 5, 24), usual(dtype, 24)
      local _, _, mean, rstd = forward(x, nil, { 24 }, w, nil, 1e-5)
      local all = { backward(d, x, { 24 }, mean, rstd, w, w, { true, true, true }) }
      for i = 1, centred and 3 or 2 do
        local one = { backward(d, x, { 24 }, mean, rstd, w, w, { i == 1, i == 2, i == 3 }) }
        assert.is_true(one[i]:equal(all[i]))
      end
    end)
  end

  each_type('swiglu and its derivative', function(dtype)
    local large = T.tensor({ -100, -88, -20, 0, 20, 88, 100, 1e4 }):to(dtype)
    for _, count in ipairs { 0, 1, 7, 8, 33, 257, 4096 } do
      for _, from in ipairs { 0, 1 } do
        local function some()
          return usual(dtype, count + from + 8):slice(0, from)
        end
        local x = aten.cat({ usual(dtype, count + from) * 3, large }):slice(0, from)
        local u, d = some(), some()
        local function of(gate, up)
          local open = gate:sigmoid()
          return gate * open * up, open, gate * open
        end
        local truth, open, silu = of(wide(x), wide(u))
        local function apart(y) return y:unsqueeze(-1) end -- each element is a row
        near(apart(truth), apart(run(ours.swiglu, x, u)), 1e-6, 'y')
        local dx, du = run(ours.swiglu_backward, d, x, u)
        local slope = open * (wide(x) * (1 - open) + 1)
        near(wide(d) * wide(u) * slope, dx, 1e-6, 'dgate')
        near(apart(wide(d) * silu), apart(du), 1e-6, 'dup')
      end
    end
  end)

  each_type('rope and its derivative', function(dtype)
    local function turn(x)
      local halves = x:chunk(2, -1)
      return aten.cat({ -halves[2], halves[1] }, -1)
    end
    for _, shape in ipairs { { 2, 3, 5, 6 }, { 4, 2 }, { 2, 2, 33, 64 }, { 3, 7, 16 },
      { 0, 4, 8 } } do
      for _, swapped in ipairs { false, true } do
        local x = numbers(dtype, unpack(shape))
        if swapped then x = x:transpose(0, -2):contiguous():transpose(0, -2) end
        local time, width = shape[#shape - 1], shape[#shape]
        -- Each of its own, and such that float16 can hold the results.
        local cos = (usual('float64', time, width):cos() * 0.5):to(dtype)
        local sin = (usual('float64', time, width):sin() * 0.5):to(dtype)
        local y, back = run(ours.rope, x, cos, sin), run(ours.rope_backward, x, cos, sin)
        near(wide(x) * wide(cos) + turn(wide(x)) * wide(sin), y, 1e-6)
        near(wide(x) * wide(cos) - turn(wide(x) * wide(sin)), back, 1e-6)
      end
    end
  end)

  for _, dtype in ipairs { 'float32', 'bfloat16', 'float16', 'float64' } do
    it('dropout keeps what it keeps on a CPU, bit by bit, ' .. dtype, function()
      g = T.generator(6)
      for _, p in ipairs { 0, 0.1, 0.5, 1 } do
        for _, case in ipairs { { { 5 } }, { { 1 } }, { { 2, 3, 64 } }, { { 0, 4 } },
          { { 300, 129 } }, { { 3, 7 }, { 1, 2 }, { 5, 11 } },
          { { 2, 3, 70 }, { 1, 0, 3 }, { 4, 3, 200 } }, { { 2, 2, 2, 66 }, { 0, 1, 5, 63 },
            { 3, 3, 9, 999 } } } do
          local x = usual(dtype, unpack(case[1]))
          local draws = { p, 'fc:dropout#0', 7, 3, 1, case[2], case[3] }
          local function both(op)
            assert.is_true(run(op, x, unpack(draws, 1, 7)):to('cpu'):equal(
              op(x, unpack(draws, 1, 7))))
          end
          both(ours.dropout)
          both(ours.dropout_mask)
        end
      end
    end)
  end

  -- Sums, losses and gradients of rows.
  local function losses(x, y, ignore, smoothing)
    local sums = x:logsumexp({ -1 })
    local ignored = y:eq(ignore)
    local label = y:masked_fill(ignored, 0)
    local own = x:gather(1, label:unsqueeze(1)):squeeze(1)
    local each = (sums - own) * (1 - smoothing)
    if smoothing > 0 then each = each + (sums - x:mean(-1)) * smoothing end
    local p = (x - sums:unsqueeze(1)):exp()
    local one = aten.zeros_like(p):scatter(1, label:unsqueeze(1), 1 - smoothing)
    local d = p - one - smoothing / x:size(1)
    return sums, each:masked_fill(ignored, 0), d:masked_fill(ignored:unsqueeze(1), 0)
  end

  each_type('cross_entropy and its derivative', function(dtype)
    for _, shape in ipairs { { 4, 1 }, { 5, 7 }, { 3, 33 }, { 4, 257 }, { 6, 4096 },
      { 1, 50257 } } do
      for reduction = 0, 2 do
        for _, smoothing in ipairs { 0, 0.1 } do
          local rows, classes = shape[1], shape[2]
          local x = usual(dtype, rows, classes) * 5
          local y = T.randint(0, classes, { rows }, { generator = g, dtype = 'int64' })
          if rows > 2 then y = y:masked_fill(T.arange(rows):eq(1), -100) end
          if smoothing == 0 and classes > 7 then -- classes that cannot be
            local masked = T.arange(classes):remainder(3):eq(0):unsqueeze(0):logical_and(
              T.arange(classes):unsqueeze(0):ne(y:unsqueeze(1)))
            x = x:masked_fill(masked, -1 / 0)
          end
          local sums, each, d = losses(wide(x), y, -100, smoothing)
          local count = y:ne(-100):sum():to 'float64'
          local truth = each
          if reduction > 0 then truth = each:sum() end
          if reduction == 1 then truth = truth / count end
          local loss, own_sums, own_count = run(ours.cross_entropy, x, y, reduction, -100,
            smoothing)
          assert.equal('float32', own_sums.dtype)
          near(truth, loss, 2e-6, 'loss')
          near(sums, own_sums, 1e-6, 'sums')
          if reduction > 0 then assert.equal(count:item(), own_count:item()) end
          local grad = reduction == 0 and usual(dtype, rows) or T.full({}, 1.5):to(dtype)
          local by = reduction == 0 and wide(grad):unsqueeze(1) or wide(grad)
          if reduction == 1 then by = by / count end
          near(d * by, run(ours.cross_entropy_backward, grad, x, y, own_sums, own_count, reduction,
            -100, smoothing), 3e-6, 'gradient', aten.ones_like(d) * by)
        end
      end
    end
  end)

  each_type('cross_entropy of rows of no class, and of none', function(dtype)
    local x = T.full({ 3, 40 }, -1 / 0):to(dtype)
    local y = T.tensor({ 3, -100, 7 }, { dtype = 'int64' })
    local loss, sums, count = run(ours.cross_entropy, x, y, 0, -100)
    loss, sums = wide(loss:to 'cpu'):tolist(), wide(sums:to 'cpu')
    assert.same({ -1 / 0, -1 / 0, -1 / 0 }, sums:tolist())
    assert.is_true(loss[1] ~= loss[1] and loss[3] ~= loss[3])
    assert.equal(0, loss[2])
    local d = run(ours.cross_entropy_backward, T.ones({ 3 }):to(dtype), x, y, sums:to 'float32',
      count, 0, -100)
    assert.equal(0, wide(d:to 'cpu'):select(0, 1):abs():amax():item())
    local none = T.zeros({ 0, 8 }):to(dtype)
    loss = run(ours.cross_entropy, none, T.zeros({ 0 }, { dtype = 'int64' }), 2)
    assert.equal(0, loss:item())
  end)

  each_type('linear_cross_entropy and its derivative', function(dtype)
    local x, w = usual(dtype, 37, 16), usual(dtype, 100, 16)
    local y = T.randint(0, 100, { 37 }, { generator = g, dtype = 'int64' })
    -- The product's own rounding is not what is looked at here.
    local scores = wide(aten.mm(x, w:t()))
    local gap = 4 * (dtype == 'float32' and 1e-6 or dtype == 'bfloat16' and 2 ^ -8 or 2 ^ -11)
    local own, sums = run(ours.linear_scores, x, w, y, 8)
    near(scores:gather(1, y:unsqueeze(1)):squeeze(1), own, gap)
    near(scores:logsumexp { -1 }, sums, gap)
    local da, db = usual('float32', 37), usual('float32', 37)
    local d = (scores - scores:logsumexp({ -1 }, true)):exp() * wide(db):unsqueeze(1)
    d = d:scatter_add(1, y:unsqueeze(1), wide(da):unsqueeze(1))
    local dx, dw = run(ours.linear_scores_backward, da, db, x, w, y, sums, 8, { true, true })
    near(d:mm(wide(w)), dx, gap)
    near(d:t():mm(wide(x)), dw, gap * 4)
    y = y:masked_fill(T.arange(37):remainder(5):eq(2), -1)
    local _, each, slope = losses(scores, y, -1, 0)
    local loss
    loss, dx, dw = run(ours.linear_cross_entropy_gradients, x, w, y, -1, 8, { true, true, true })
    near(each:sum(), loss, gap)
    near(slope:mm(wide(w)), dx, gap)
    near(slope:t():mm(wide(x)), dw, gap * 4)
  end)
end
