// Convolutions and pooling, as sums over all pairs of places that meet in a window.
#include <cmath>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

struct Convolution {
  Array input, weight;
  Shape stride, padding, dilation, extra;
  bool transposed;
  int64_t groups;

  explicit Convolution(const Call& c)
      : input(c.in("input")),
        weight(c.in("weight")),
        stride(c.ints("stride")),
        padding(c.ints("padding")),
        dilation(c.ints("dilation")),
        extra(c.ints("output_padding")),
        transposed(c.boolean("transposed")),
        groups(c.integer("groups", 1)) {}

  Shape out_shape() const {
    Shape out{input.shape[0], transposed ? weight.shape[1] * groups : weight.shape[0]};
    for (size_t d = 0; d < stride.size(); ++d) {
      const int64_t in = input.shape[d + 2], span = dilation[d] * (weight.shape[d + 2] - 1);
      out.push_back(transposed ? (in - 1) * stride[d] - 2 * padding[d] + span + extra[d] + 1
                               : (in + 2 * padding[d] - span - 1) / stride[d] + 1);
    }
    return out;
  }

  // Calls f(input place, weight place, output place) for all that meet.
  void each_product(const std::function<void(const Index&, const Index&, const Index&)>& f) const {
    const Shape out = out_shape();
    const int64_t in_group = input.shape[1] / groups, out_group = out[1] / groups;
    // A transposed convolution walks over its input as the other kind walks over its output.
    const Shape& walked = transposed ? input.shape : out;
    const Shape& met = transposed ? out : input.shape;
    each(walked, [&](const Index& w) {
      const int64_t group = w[1] / (transposed ? in_group : out_group);
      each(weight.shape, [&](const Index& k) {
        if (k[0] != w[1]) return;
        Index other = w;
        other[1] = group * (transposed ? out_group : in_group) + k[1];
        for (size_t d = 0; d < stride.size(); ++d) {
          other[d + 2] = w[d + 2] * stride[d] - padding[d] + k[d + 2] * dilation[d];
          if (other[d + 2] < 0 || other[d + 2] >= met[d + 2]) return;
        }
        transposed ? f(w, k, other) : f(other, k, w);
      });
    });
  }
};

Results convolution(const Call& c) {
  const Convolution conv(c);
  Array out = Array::filled(conv.out_shape());
  conv.each_product([&](const Index& i, const Index& k, const Index& o) {
    out.at(o) += conv.input.at(i) * conv.weight.at(k);
  });
  if (c.has("bias")) {
    Shape shape(out.rank(), 1);
    shape[1] = out.shape[1];
    out = zip(out, reshape(c.in("bias"), shape), std::plus<>());
  }
  return {out};
}
Results convolution_backward(const Call& c) {
  const Convolution conv(c);
  const Array g = c.in("grad_output");
  const auto mask = c.flags("output_mask");
  Results out{Array::filled(conv.input.shape), Array::filled(conv.weight.shape),
              Array::filled({g.shape[1]})};
  conv.each_product([&](const Index& i, const Index& k, const Index& o) {
    out[0].at(i) += g.at(o) * conv.weight.at(k);
    out[1].at(k) += g.at(o) * conv.input.at(i);
  });
  each(g.shape, [&](const Index& o) { out[2].at({o[1]}) += g.at(o); });
  for (size_t r = 0; r < 3; ++r)
    if (!mask[r]) out[r] = Array::filled({0});
  return out;
}

// --- pooling, over the last two dimensions -------------------------------------------------------

struct Pool {
  Shape in, kernel, stride, padding, dilation;
  bool ceil;

  Pool(const Call& c, const Shape& shape)
      : in(shape),
        kernel(pair(c.ints("kernel_size"), 1)),
        stride(c.ints("stride").empty() ? kernel : pair(c.ints("stride"), 1)),
        padding(pair(c.ints("padding"), 0)),
        dilation(pair(c.ints("dilation"), 1)),
        ceil(c.boolean("ceil_mode")) {}

  static Shape pair(Shape v, int64_t otherwise) {
    if (v.empty()) v = {otherwise};
    if (v.size() == 1) v.push_back(v[0]);
    return v;
  }
  Shape out_shape() const {
    Shape out = in;
    for (size_t d = 0; d < 2; ++d) {
      int64_t& n = out[out.size() - 2 + d];
      const int64_t room = n + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1;
      const int64_t windows = (room + (ceil ? stride[d] - 1 : 0)) / stride[d] + 1;
      // A window has to start inside.
      const bool outside = ceil && (windows - 1) * stride[d] >= n + padding[d];
      n = outside ? windows - 1 : windows;
    }
    return out;
  }
  // Calls f(place) for the places of a window that lie inside; returns how many of it lie inside
  // the padded picture.
  int64_t each_place(const Index& o, const std::function<void(const Index&)>& f) const {
    int64_t padded = 0;
    each(kernel, [&](const Index& k) {
      Index i = o;
      bool inside = true, near = true;
      for (size_t d = 0; d < 2; ++d) {
        int64_t& at = i[i.size() - 2 + d];
        at = at * stride[d] - padding[d] + k[d] * dilation[d];
        const int64_t n = in[in.size() - 2 + d];
        inside = inside && at >= 0 && at < n;
        near = near && at < n + padding[d];
      }
      padded += near;
      if (inside) f(i);
    });
    return padded;
  }
};

Results max_pool(const Call& c) {
  const Array x = c.in("self");
  const Pool pool(c, x.shape);
  const Array out = Array::filled(pool.out_shape(), -HUGE_VAL);
  const Array places = Array::filled(out.shape, 0, DType::i64);
  each(out.shape, [&](const Index& o) {
    pool.each_place(o, [&](const Index& i) {
      if (x.at(i) <= out.at(o)) return;
      out.at(o) = x.at(i);
      places.at(o) = static_cast<double>(i[i.size() - 2] * x.shape.back() + i.back());
    });
  });
  return {out, places};
}
Results max_pool_backward(const Call& c) {
  const Array x = c.in("self"), g = c.in("grad_output"), at = c.in("indices");
  const Array out = Array::filled(x.shape);
  each(g.shape, [&](const Index& o) {
    Index i = o;
    const auto place = static_cast<int64_t>(at.at(o));
    i[i.size() - 2] = place / x.shape.back();
    i.back() = place % x.shape.back();
    out.at(i) += g.at(o);
  });
  return {out};
}

// Calls f(input place, output place, share) for an average.
void each_share(const Call& c, const Shape& shape, const Shape& out,
                const std::function<void(const Index&, const Index&, double)>& f) {
  const Pool pool(c, shape);
  each(out, [&](const Index& o) {
    std::vector<Index> inside;
    const int64_t padded = pool.each_place(o, [&](const Index& i) { inside.push_back(i); });
    const int64_t n = c.has("divisor_override")              ? c.integer("divisor_override")
                      : c.boolean("count_include_pad", true) ? padded
                                                             : static_cast<int64_t>(inside.size());
    for (const Index& i : inside) f(i, o, 1.0 / static_cast<double>(n));
  });
}
Results avg_pool(const Call& c) {
  const Array x = c.in("self"), out = Array::filled(Pool(c, x.shape).out_shape());
  each_share(c, x.shape, out.shape,
             [&](const Index& i, const Index& o, double share) { out.at(o) += x.at(i) * share; });
  return {out};
}
Results avg_pool_backward(const Call& c) {
  const Array g = c.in("grad_output"), out = Array::filled(c.in("self").shape);
  each_share(c, out.shape, g.shape,
             [&](const Index& i, const Index& o, double share) { out.at(i) += g.at(o) * share; });
  return {out};
}

// Windows of an adaptive average: [floor(o in / out), ceil((o + 1) in / out)).
void each_adaptive(const Shape& in, const Shape& out,
                   const std::function<void(const Index&, const Index&, double)>& f) {
  each(out, [&](const Index& o) {
    const size_t h = in.size() - 2, w = in.size() - 1;
    const auto first = [&](size_t d) { return o[d] * in[d] / out[d]; };
    const auto last = [&](size_t d) { return ((o[d] + 1) * in[d] + out[d] - 1) / out[d]; };
    const auto n = static_cast<double>((last(h) - first(h)) * (last(w) - first(w)));
    Index i = o;
    for (i[h] = first(h); i[h] < last(h); ++i[h])
      for (i[w] = first(w); i[w] < last(w); ++i[w]) f(i, o, 1 / n);
  });
}

}  // namespace

void add_spatial(Operators& all) {
  all["aten::convolution"] = convolution;
  all["aten::convolution_backward"] = convolution_backward;
  all["aten::max_pool2d_with_indices"] = max_pool;
  all["aten::max_pool2d_with_indices_backward"] = max_pool_backward;
  all["aten::avg_pool2d"] = avg_pool;
  all["aten::avg_pool2d_backward"] = avg_pool_backward;
  all["aten::_adaptive_avg_pool2d"] = [](const Call& c) {
    const Array x = c.in("self");
    Shape shape = x.shape;
    const Shape size = c.ints("output_size");
    std::copy(size.begin(), size.end(), shape.end() - 2);
    const Array out = Array::filled(shape);
    each_adaptive(x.shape, shape, [&](const Index& i, const Index& o, double share) {
      out.at(o) += x.at(i) * share;
    });
    return Results{out};
  };
  all["aten::_adaptive_avg_pool2d_backward"] = [](const Call& c) {
    const Array g = c.in("grad_output"), out = Array::filled(c.in("self").shape);
    each_adaptive(out.shape, g.shape, [&](const Index& i, const Index& o, double share) {
      out.at(i) += g.at(o) * share;
    });
    return Results{out};
  };
}

}  // namespace nns::test
