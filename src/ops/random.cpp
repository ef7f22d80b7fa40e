// nnscaler::dropout, noise and nnscaler::fill_*: random operators that draw the same element values
// whichever slice of a tensor this rank holds.
#include "ops/random.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_qr.h>
#include <torch/library.h>

#include <type_traits>

#include "ops/kernels.h"
#include "ops/words.h"

namespace nns::ops {

Stream checked_stream(std::string_view key, int64_t seed, int64_t step, int64_t micro) {
  if (seed < 0 || seed >= int64_t{1} << 53)
    fail(ErrorKind::usage, "[ops.random] seed {}; expected 0 to 2^53 - 1", seed);
  if (step < 0 || step > UINT32_MAX || micro < 0 || micro > UINT32_MAX)
    fail(ErrorKind::usage, "[ops.random] step {}, micro-batch {}; expected 0 to 2^32 - 1", step,
         micro);
  return make_stream(key, static_cast<uint64_t>(seed), static_cast<uint64_t>(step),
                     static_cast<uint64_t>(micro));
}

Slice checked_slice(at::IntArrayRef shape, const OptionalShape& offset, const OptionalShape& full) {
  if (offset.has_value() != full.has_value())
    fail(ErrorKind::usage, "[ops.random] offset and full are given together or not at all");
  return full ? Slice(shape.vec(), offset->vec(), full->vec()) : Slice(shape.vec());
}

void check_probability(double p) {
  if (!(p >= 0 && p <= 1))
    fail(ErrorKind::usage, "[ops.dropout] probability {}; expected 0 to 1", p);
}

at::Tensor dropout_gpu(const at::Tensor& x, at::Tensor y, gpu::Type type, const Stream& stream,
                       const Slice& slice, double p) {
  if (y.numel() > 0)
    launch(y, &gpu::Kernels::dropout,
           gpu::Dropout{type, stream, drop_threshold(p), 1.0 / (1.0 - p),
                        slice.numel_local() / slice.run(), slice.run(), slice.start(),
                        gpu_axes(slice.extents(), slice.strides()), gpu_read(x), gpu_write(y)});
  return y;
}

namespace {

constexpr int64_t kGrain = 8192;   // elements a thread gets at least
constexpr int64_t kBuffer = 1024;  // words drawn at a time: stays in the first-level cache

template <class T>
void dropout_run(const T* x, T* y, int64_t count, const uint32_t* words, uint32_t limit,
                 at::opmath_type<T> scale) {
  if constexpr (std::is_same_v<T, float>) {
    drop(x, words, limit, scale, y, count);
  } else if constexpr (std::is_same_v<T, at::BFloat16>) {
    float wide[kBuffer];
    widen(reinterpret_cast<const uint16_t*>(x), wide, count);
    drop(wide, words, limit, scale, wide, count);
    narrow(wide, reinterpret_cast<uint16_t*>(y), count);
  } else {
    for (int64_t i = 0; i < count; ++i)
      y[i] =
          words[i] >= limit ? static_cast<T>(static_cast<at::opmath_type<T>>(x[i]) * scale) : T(0);
  }
}

}  // namespace

at::Tensor dropout_fused(const at::Tensor& input, double p, std::string_view key, int64_t seed,
                         int64_t step, int64_t micro, OptionalShape offset, OptionalShape full) {
  const auto type = gpu_kernels(input.device()) != nullptr ? gpu_type(input) : std::nullopt;
  if (!type && !input.is_cpu())
    return dropout_composed(input, p, key, seed, step, micro, offset, full);
  check_probability(p);
  const Stream stream = checked_stream(key, seed, step, micro);
  const Slice slice = checked_slice(input.sizes(), offset, full);
  if (p == 0) return input.clone();
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  const uint64_t threshold = drop_threshold(p);
  if (threshold >> 32) return y.zero_();
  if (type) return dropout_gpu(x, y, *type, stream, slice, p);
  const auto limit = static_cast<uint32_t>(threshold);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, x.scalar_type(), "nnscaler::dropout", [&] {
        const auto scale = static_cast<at::opmath_type<scalar_t>>(1.0 / (1.0 - p));
        const scalar_t* from = x.const_data_ptr<scalar_t>();
        scalar_t* to = y.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, slice.numel_local(), kGrain, [&](int64_t begin, int64_t end) {
          uint32_t words[kBuffer];
          slice.for_each_run(begin, end, [&](int64_t local, int64_t at, int64_t count) {
            while (count > 0) {
              // Stop at tile borders, so that the next draw begins a tile.
              const int64_t n = std::min(count, kBuffer - at % kTile);
              draw_words(stream, static_cast<uint64_t>(at), n, words);
              dropout_run(from + local, to + local, n, words, limit, scale);
              local += n;
              at += n;
              count -= n;
            }
          });
        });
      });
  return y;
}

namespace {

// Has `draw(element, count, put)` write runs of elements: put(i, value) sets the i-th of a run.
// Values are computed in double and rounded once, so the float32 tensor is the rounded float64 one.
template <class Draw>
at::Tensor& fill(at::Tensor& self, OptionalShape offset, OptionalShape full, Draw draw) {
  const Slice slice = checked_slice(self.sizes(), offset, full);
  at::Tensor target = self.is_cpu() && self.is_contiguous()
                          ? self
                          : at::empty(self.sizes(), self.options().device(at::kCPU));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, target.scalar_type(), "nnscaler::fill", [&] {
        scalar_t* to = target.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, slice.numel_local(), kGrain, [&](int64_t begin, int64_t end) {
          slice.for_each_run(begin, end, [&](int64_t local, int64_t at, int64_t count) {
            draw(static_cast<uint64_t>(at), count,
                 [&](int64_t i, double value) { to[local + i] = static_cast<scalar_t>(value); });
          });
        });
      });
  if (!target.is_same(self)) self.copy_(target);
  return self;
}

// Draws of elements one by one.
template <class Draw>
auto each(Draw draw) {
  return [draw](uint64_t element, int64_t count, auto put) {
    for (int64_t i = 0; i < count; ++i) put(i, draw(element + static_cast<uint64_t>(i)));
  };
}

at::Tensor& fill_normal_(at::Tensor& self, double mean, double std, c10::string_view key,
                         int64_t seed, OptionalShape offset, OptionalShape full) {
  const Stream s = checked_stream(key, seed, 0, 0);
  return fill(self, offset, full, [=](uint64_t element, int64_t count, auto put) {
    const auto pair = [&](int64_t i) {
      return normal_pair(s, (element + static_cast<uint64_t>(i)) / 2);
    };
    int64_t i = 0;
    if (element % 2 == 1 && count > 0) put(i++, mean + std * pair(0)[1]);
    for (; i + 1 < count; i += 2) {
      const auto [first, second] = pair(i);
      put(i, mean + std * first);
      put(i + 1, mean + std * second);
    }
    if (i < count) put(i, mean + std * pair(i)[0]);
  });
}

at::Tensor& fill_uniform_(at::Tensor& self, double low, double high, c10::string_view key,
                          int64_t seed, OptionalShape offset, OptionalShape full) {
  const Stream s = checked_stream(key, seed, 0, 0);
  return fill(self, offset, full,
              each([=](uint64_t e) { return low + (high - low) * uniform(s, e); }));
}

// Normal values conditioned on lying in [low, high], by inversion.
at::Tensor& fill_trunc_normal_(at::Tensor& self, double mean, double std, double low, double high,
                               c10::string_view key, int64_t seed, OptionalShape offset,
                               OptionalShape full) {
  const Stream s = checked_stream(key, seed, 0, 0);
  const auto distribution = [&](double x) {
    return 0.5 * std::erfc(-(x - mean) / (std * 1.41421356237309504880));
  };
  const double from = distribution(low), to = distribution(high);
  if (!(std > 0 && from < to))
    fail(ErrorKind::usage,
         "[ops.fill_trunc_normal_] mean {}, std {}, bounds {} and {}; expected std > 0 and some "
         "probability between the bounds",
         mean, std, low, high);
  return fill(self, offset, full, each([=](uint64_t e) {
                // The half step keeps the argument away from 0 and 1.
                const double u = from + (to - from) * (uniform(s, e) + 0x1p-54);
                return std::min(high, std::max(low, mean + std * normal_quantile(u)));
              }));
}

// Orthonormal rows or columns (whichever are fewer) of the matrix of dimension 0 by all others: the
// orthogonal factor of a normal matrix, its signs fixed. Not element-wise, so computed whole.
at::Tensor& fill_orthogonal_(at::Tensor& self, double gain, c10::string_view key, int64_t seed,
                             OptionalShape offset, OptionalShape full) {
  checked_slice(self.sizes(), offset, full);
  const Shape shape = full ? full->vec() : self.sizes().vec();
  if (shape.size() < 2)
    fail(ErrorKind::usage, "[ops.fill_orthogonal_] shape {}; expected two dimensions or more",
         to_string(shape));
  at::Tensor whole = at::empty(shape, at::kDouble);
  fill_normal_(whole, 0, 1, key, seed, std::nullopt, std::nullopt);
  if (whole.numel() > 0) {
    const at::Tensor matrix = whole.view({shape[0], -1});
    const bool wide = matrix.size(0) < matrix.size(1);
    auto [q, r] = at::linalg_qr(wide ? matrix.t() : matrix);
    q = q.mul(r.diagonal().sgn().mul(gain));
    whole = (wide ? q.t() : q).reshape(shape);
  }
  for (size_t d = 0; full && d < shape.size(); ++d)
    whole = whole.narrow(static_cast<int64_t>(d), (*offset)[d], self.size(static_cast<int64_t>(d)));
  return self.copy_(whole);
}

// Noise of a model: a fresh tensor like another, its elements functions of key, seed, step,
// micro-batch and place.
template <class Draw>
at::Tensor noise(const at::Tensor& like, std::optional<at::ScalarType> dtype, std::string_view key,
                 int64_t seed, int64_t step, int64_t micro, OptionalShape offset,
                 OptionalShape full, Draw draw) {
  const Stream s = checked_stream(key, seed, step, micro);
  at::Tensor out =
      at::empty(like.sizes(), like.options().dtype(dtype.value_or(like.scalar_type())));
  return fill(out, offset, full, each([=](uint64_t e) { return draw(s, e); }));
}

at::Tensor normal_like(const at::Tensor& like, std::optional<at::ScalarType> dtype,
                       c10::string_view key, int64_t seed, int64_t step, int64_t micro,
                       OptionalShape offset, OptionalShape full) {
  return noise(like, dtype, key, seed, step, micro, offset, full,
               [](const Stream& s, uint64_t e) { return normal(s, e); });
}

at::Tensor uniform_like(const at::Tensor& like, std::optional<at::ScalarType> dtype,
                        c10::string_view key, int64_t seed, int64_t step, int64_t micro,
                        OptionalShape offset, OptionalShape full) {
  return noise(like, dtype, key, seed, step, micro, offset, full,
               [](const Stream& s, uint64_t e) { return uniform(s, e); });
}

// 1 with probability p, else 0; drawn in float64, so that it does not depend on the dtype of p.
at::Tensor bernoulli(const at::Tensor& p, c10::string_view key, int64_t seed, int64_t step,
                     int64_t micro, OptionalShape offset, OptionalShape full) {
  const at::Tensor draw = uniform_like(p, at::kDouble, key, seed, step, micro, offset, full);
  return draw.lt(p.detach().to(at::kDouble)).to(p.scalar_type());
}

TORCH_LIBRARY(nnscaler, m) {
  m.def(
      "dropout(Tensor input, float p, str key, int seed, int step, int micro, "
      "int[]? offset=None, int[]? full=None) -> Tensor");
  m.def(
      "dropout_mask(Tensor like, float p, str key, int seed, int step, int micro, "
      "int[]? offset=None, int[]? full=None) -> Tensor");
  m.def(
      "normal_like(Tensor like, ScalarType? dtype, str key, int seed, int step, int micro, "
      "int[]? offset=None, int[]? full=None) -> Tensor");
  m.def(
      "uniform_like(Tensor like, ScalarType? dtype, str key, int seed, int step, int micro, "
      "int[]? offset=None, int[]? full=None) -> Tensor");
  m.def(
      "bernoulli(Tensor p, str key, int seed, int step, int micro, int[]? offset=None, "
      "int[]? full=None) -> Tensor");
  m.def(
      "fill_normal_(Tensor(a!) self, float mean, float std, str key, int seed, "
      "int[]? offset=None, int[]? full=None) -> Tensor(a!)");
  m.def(
      "fill_uniform_(Tensor(a!) self, float low, float high, str key, int seed, "
      "int[]? offset=None, int[]? full=None) -> Tensor(a!)");
  m.def(
      "fill_trunc_normal_(Tensor(a!) self, float mean, float std, float low, float high, str key, "
      "int seed, int[]? offset=None, int[]? full=None) -> Tensor(a!)");
  m.def(
      "fill_orthogonal_(Tensor(a!) self, float gain, str key, int seed, int[]? offset=None, "
      "int[]? full=None) -> Tensor(a!)");
}

// No gradient leads through noise, so that autograd need not know of it.
TORCH_LIBRARY_IMPL(nnscaler, CompositeImplicitAutograd, m) {
  m.impl("normal_like", normal_like);
  m.impl("uniform_like", uniform_like);
  m.impl("bernoulli", bernoulli);
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("dropout", dropout_fused);
  m.impl("dropout_mask", dropout_mask);
  m.impl("fill_normal_", fill_normal_);
  m.impl("fill_uniform_", fill_uniform_);
  m.impl("fill_trunc_normal_", fill_trunc_normal_);
  m.impl("fill_orthogonal_", fill_orthogonal_);
}

}  // namespace
}  // namespace nns::ops
