--- Operators that PyTorch users call, each on what a linear layer makes: [rows, 24] in float64.
--- They are models of the plan matrix under "op NAME", unlisted.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local I64 = { dtype = 'int64' }

local ops = {
  pixel_shuffle = function(x) return aten.pixel_shuffle(x:view(-1, 4, 2, 3), 2) end,
  im2col = function(x)
    return aten.im2col(x:view(-1, 1, 4, 6), { 2, 2 }, { 1, 1 }, { 0, 0 }, { 1, 1 })
  end,
  grid = function(x)
    local grid = x:view(-1, 2, 2, 6):permute(0, 2, 3, 1):tanh()[{ '...', '0:2' }]
    return aten.grid_sampler(x:view(-1, 1, 4, 6), grid, 0, 0, false)
  end,
  cdist = function(x) return aten.cdist(x:view(-1, 4, 6), x:view(-1, 4, 6):roll(1, 1) + 1) end,
  cosine = function(x)
    return aten.cosine_similarity(x:view(-1, 4, 6), x:view(-1, 4, 6):roll(1, 1), -1)
  end,
  fft = function(x) return aten.fft_rfft(x):abs() end,
  fft2 = function(x) return aten.view_as_real(aten.fft_fft2(x:view(-1, 4, 6))) end,
  ctc = function(x)
    local lp = x:view(-1, 6, 4):transpose(0, 1):log_softmax(-1)
    local B = lp.shape[2]
    return aten.ctc_loss(lp, T.ones({ B, 2 }, I64), T.full({ B }, 6, I64), T.full({ B }, 2, I64))
  end,
  bag = function(x)
    local t = x[0]:view(6, 4)
    return aten.embedding_bag(t, T.tensor({ 0, 2, 3, 5, 1 }, I64), T.tensor({ 0, 2 }, I64))[1]
  end,
  linalg_solve = function(x)
    local a = x:view(-1, 4, 6)[{ '...', '0:4' }]
    return aten.linalg_solve(a:matmul(a:mT()) + T.eye(4, { dtype = x.dtype }), a)
  end,
  cholesky = function(x)
    local a = x:view(-1, 4, 6)
    return aten.linalg_cholesky(a:matmul(a:mT()) + T.eye(4, { dtype = x.dtype }))
  end,
  logdet = function(x)
    local a = x:view(-1, 4, 6)
    return aten.logdet(a:matmul(a:mT()) + T.eye(4, { dtype = x.dtype }))
  end,
  svd = function(x) local _, s = aten.linalg_svd(x:view(-1, 4, 6), false); return s end,
  eigh = function(x)
    local a = x:view(-1, 4, 6)
    local w = aten.linalg_eigh(a:matmul(a:mT()))
    return w
  end,
  triplet = function(x)
    local a = x:view(-1, 3, 8)
    return aten.triplet_margin_loss(a:select(1, 0), a:select(1, 1), a:select(1, 2))
  end,
  margin = function(x) return aten.multi_margin_loss(x, T.arange(x.shape[1], I64) % 24) end,
  poisson = function(x)
    return aten.poisson_nll_loss(x, x:abs():detach(), true, false, 1e-8, 1)
  end,
  gauss = function(x) return 0.5 * (x:square() / (x:exp() + 1)):mean() end,
  hinge = function(x) return aten.hinge_embedding_loss(x, x:sign():detach()) end,
  adaptive_max = function(x)
    return (aten.adaptive_max_pool2d(x:view(-1, 1, 4, 6), { 2, 2 }))
  end,
  avg_pool3d = function(x) return aten.avg_pool3d(x:view(-1, 1, 2, 3, 4), { 2, 2, 2 }) end,
  max_pool3d = function(x) return aten.max_pool3d(x:view(-1, 1, 2, 4, 3), { 2, 2, 2 }) end,
  lrn = function(x)
    return x:view(-1, 4, 6) / (aten.avg_pool1d(x:view(-1, 4, 6):square(), { 3 }, { 1 }, { 1 }) + 1)
  end,
  nearest = function(x) return aten.upsample_nearest2d(x:view(-1, 1, 4, 6), { 8, 9 }) end,
  bicubic = function(x)
    return aten.upsample_bicubic2d(x:view(-1, 1, 4, 6), { 8, 9 }, false)
  end,
  linear1d = function(x) return aten.upsample_linear1d(x:view(-1, 4, 6), { 9 }, false) end,
  reflect = function(x) return F.pad(x:view(-1, 1, 4, 6), { 1, 2, 1, 1 }, 'reflect') end,
  replicate = function(x) return F.pad(x:view(-1, 1, 4, 6), { 1, 2, 1, 1 }, 'replicate') end,
  circular = function(x) return F.pad(x:view(-1, 1, 4, 6), { 1, 2, 1, 1 }, 'circular') end,
  tensordot = function(x)
    return aten.tensordot(x:view(-1, 4, 6), x:view(-1, 4, 6)[0], { 2 }, { 1 })
  end,
  bilinear = function(x)
    local w = x:view(-1, 4, 6)[{ '0:3' }]:expand(3, 4, 6):reshape(3, 4, 6)
    w = w:matmul(T.ones({ 6, 24 }, { dtype = x.dtype })):repeat_interleave(6, 1)
    return aten.bilinear(x, x:tanh(), w)
  end,
  kron = function(x) return aten.kron(x[{ '0:1' }], x[{ ':', '0:2' }]) end,
  meshgrid = function(x) local g = aten.meshgrid({ x[0], x[1] }); return g[1] * g[2] end,
  cummax = function(x) return (aten.cummax(x, 1)) end,
  logcumsumexp = function(x) return aten.logcumsumexp(x, 1) end,
  renorm = function(x) return aten.renorm(x, 2, 0, 1.0) end,
  trapz = function(x) return aten.trapezoid(x, { dim = 1 }) end,
  diag_embed = function(x) return aten.diag_embed(x[{ ':', '0:4' }]) end,
  block_diag = function(x)
    return aten.block_diag { x[{ '0:2', '0:2' }], x[{ '2:4', '2:5' }] }
  end,
  bucketize = function(x)
    return x * aten.bucketize(x, T.tensor { -1, 0, 1 }:to(x.dtype)):to(x.dtype)
  end,
  searchsorted = function(x)
    return x * aten.searchsorted(T.tensor { -1, 0, 1 }:to(x.dtype), x):to(x.dtype)
  end,
  heaviside = function(x) return x * aten.heaviside(x:detach(), x:new_zeros { 1 }) end,
  xlogy = function(x) return aten.xlogy(x:exp(), x:exp()) end,
  sinc = function(x) return aten.sinc(x) end,
  i0 = function(x) return aten.i0(x) end,
  erfinv = function(x) return aten.erfinv(x:tanh() * 0.9) end,
  hypot = function(x) return aten.hypot(x, x + 1) end,
  softsign = function(x) return x / (1 + x:abs()) end,
  rrelu = function(x) return aten.rrelu(x, 0.1, 0.3, false) end,
  logsigmoid = function(x) return aten.log_sigmoid(x) end,
  index_reduce = function(x)
    return x:index_reduce(1, T.tensor({ 0, 0, 1 }, I64), x[{ ':', '0:3' }], 'amax')
  end,
  scatter_reduce = function(x)
    return x:scatter_reduce(1, T.zeros({ x.shape[1], 3 }, I64), x[{ ':', '0:3' }] * 2, 'mean')
  end,
  masked_scatter = function(x) return x:masked_scatter(x:detach():gt(0), x:flip { 1 }) end,
  masked_select = function(x) return x:masked_select(x:gt(0)) end,
  boolindex = function(x) return x[{ x:gt(0) }] end,
  nonzero = function(x) return x[{ x:gt(0):nonzero():select(1, 0) }] end,
  unique = function(x) return x:round():unique_consecutive()[1] end,
  put_along = function(x) return x:take_along_dim(x:argsort(1), 1) end,
  take = function(x) return aten.take(x, T.tensor({ 0, 5, 9 }, I64)) end,
  rot90 = function(x) return aten.rot90(x:view(-1, 4, 6), 1, { 1, 2 }) end,
  fold = function(x)
    return aten.col2im(x:view(-1, 4, 6), { 3, 4 }, { 2, 2 }, { 1, 1 }, { 0, 0 }, { 1, 1 })
  end,
  nanfix = function(x) return T.where(x:gt(0), x:clamp_min(1e-12):log(), x) end,
  quantile = function(x) return aten.quantile(x, 0.3, 1) end,
  mode = function(x) return (aten.mode(x, 1)) end,
  kthvalue = function(x) return (aten.kthvalue(x, 3, 1)) end,
  cross = function(x)
    return aten.linalg_cross(x:view(-1, 8, 3), x:view(-1, 8, 3):roll(1, 1))
  end,
  mvlgamma = function(x) return aten.mvlgamma(x:abs() + 2, 2) end,
  stft = function(x)
    return aten.stft(x, 8, { onesided = true, return_complex = true }):abs()
  end,
  slice0 = function(x) return T.cat({ x[{ ':', '0:0' }], x }, 1) end,
  empty = function(x) return x:sum() + x[{ ':', '3:3' }]:sum() end,
  emptymean = function(x) return x:sum() + x[{ ':', '3:3' }]:prod() end,
  step = function(x) return x[{ ':', '::3' }] * x[{ ':', '-3:' }]:sum() end,
  neg = function(x) return x[{ -1 }] * x[{ ':', -2 }]:sum() end,
  setitem = function(x)
    local y = x * 1
    y[{ ':', '::2' }] = y[{ ':', '1::2' }]
    y[{ 0, { 1, 2 } }] = 3
    return y
  end,
  iadd = function(x)
    local y = x:clone()
    y:add_(1)
    y:select(1, 0):mul_(2)
    y:t():relu_()
    return y
  end,
  expandw = function(x)
    local y = x:new_zeros { 1, 24 }:expand(x.shape[1], 24)
    return y + x
  end,
  rsub = function(x) return 1 - x + 2 / (x:exp()) - x % 2 + x ^ 2 + 2 ^ x end,
  polar = function(x) return aten.view_as_real(aten.polar(x:abs() + 0.1, x)) end,
  complexmul = function(x)
    local c = aten.view_as_complex(x:view(-1, 12, 2))
    return aten.view_as_real(c * c:conj())
  end,
  std0 = function(x)
    return x:std(0, false):sum() + x:var { dim = { 1 }, correction = 0 }:sum()
  end,
  instance = function(x)
    return aten.instance_norm(x:view(-1, 4, 6), nil, nil, nil, nil, true, 0.1, 1e-5, false)
  end,
  lnone = function(x)
    return F.layer_norm(x, { 24 }) + F.layer_norm(x[{ ':', '0:1' }], { 1 })
  end,
  alpha = function(x) return aten.alpha_dropout(x, 0.3, true) end,
  featdrop = function(x) return aten.feature_dropout(x:view(-1, 4, 6), 0.3, true) end,
  bern = function(x) return x * aten.bernoulli(x:sigmoid():detach()) end,
  multinomial = function(x) return x:gather(1, aten.multinomial(x:softmax(1):detach(), 2)) end,
}

local M = { names = sorted_keys(ops) }

for _, name in ipairs(M.names) do
  local Net = nn.class 'OpNet'
  function Net:init() self.a = nn.Linear(24, 24) end
  function Net:forward(s)
    local y = ops[name](self.a(s.x) * 0.2)
    if type(y) == 'table' then y = y[1] end
    return y:square():mean() + y:cos():mean()
  end
  models['op ' .. name] = { group = 'operators', make = function() return Net() end,
    sample = function(g)
      return { x = T.randn({ 4, 24 }, { generator = g, dtype = 'float64' }) }
    end }
end

return M
