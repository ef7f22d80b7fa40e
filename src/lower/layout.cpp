#include "lower/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace nns::lower {

Range part_of(Range whole, int index, int parts) {
  const int64_t base = whole.length() / parts, rest = whole.length() % parts;
  const int64_t start = whole.start + index * base + std::min<int64_t>(index, rest);
  return {start, start + base + (index < rest ? 1 : 0)};
}

Range part_of(Range whole, int index, int parts, const std::vector<int64_t>& sizes) {
  if (sizes.empty()) return part_of(whole, index, parts);
  const int64_t start = std::accumulate(sizes.begin(), sizes.begin() + index, whole.start);
  return {start, start + sizes[static_cast<size_t>(index)]};
}

Layout Layout::replicated(std::vector<int> devices) {
  const int n = static_cast<int>(devices.size());
  return {std::move(devices), {{n, AxisKind::replicate, 0}}};
}

int Layout::position_of(int device) const {
  const auto at = std::find(devices.begin(), devices.end(), device);
  return at == devices.end() ? -1 : static_cast<int>(at - devices.begin());
}

std::vector<int> Layout::coordinates(int position) const {
  std::vector<int> c(axes.size());
  for (size_t a = axes.size(); a-- > 0;) {
    c[a] = position % axes[a].size;
    position /= axes[a].size;
  }
  return c;
}

Piece Layout::piece(const Shape& shape, int device) const {
  const int position = position_of(device);
  NNS_CHECK(position >= 0, "device {} is not in {}", device, to_string(*this));
  const auto c = coordinates(position);
  Piece piece;
  for (int64_t length : shape) piece.box.push_back({0, length});
  for (size_t a = 0; a < axes.size(); ++a) {
    if (axes[a].kind == AxisKind::split) {
      auto& range = piece.box.at(static_cast<size_t>(axes[a].dim));
      range = part_of(range, c[a], axes[a].size, axes[a].sizes);
    } else if (axes[a].kind == AxisKind::value) {
      piece.addend = piece.addend * axes[a].size + c[a];
      piece.addends *= axes[a].size;
    }
  }
  return piece;
}

Shape Layout::local_shape(const Shape& shape, int device) const {
  Shape local;
  for (const Range& r : piece(shape, device).box) local.push_back(r.length());
  return local;
}

bool Layout::has_value_axis() const {
  return std::any_of(axes.begin(), axes.end(),
                     [](const Axis& a) { return a.kind == AxisKind::value && a.size > 1; });
}

std::vector<int> Layout::group(int device, int axis) const {
  int stride = 1;
  for (size_t a = axes.size(); --a > static_cast<size_t>(axis);) stride *= axes[a].size;
  const int position = position_of(device);
  const int size = axes[static_cast<size_t>(axis)].size;
  const int first = position - position / stride % size * stride;
  std::vector<int> members;
  for (int i = 0; i < size; ++i)
    members.push_back(devices[static_cast<size_t>(first + i * stride)]);
  return members;
}

Layout Layout::simplified() const {
  Layout out{devices, {}};
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (!out.axes.empty() && axis.kind != AxisKind::split && out.axes.back().kind == axis.kind)
      out.axes.back().size *= axis.size;
    else
      out.axes.push_back(axis);
  }
  return out;
}

bool same_pieces(const Layout& a, const Layout& b, const Shape& shape) {
  if (a.devices.size() != b.devices.size()) return false;
  return std::all_of(a.devices.begin(), a.devices.end(), [&](int device) {
    return b.position_of(device) >= 0 && a.piece(shape, device) == b.piece(shape, device);
  });
}

std::string to_string(const Layout& layout) {
  std::vector<std::string> axes;
  for (const Axis& a : layout.axes)
    axes.push_back(a.kind == AxisKind::replicate ? fmt::format("R{}", a.size)
                   : a.kind == AxisKind::value   ? fmt::format("V{}", a.size)
                   : a.sizes.empty()             ? fmt::format("D{}:{}", a.dim, a.size)
                                     : fmt::format("D{}:{}", a.dim, fmt::join(a.sizes, "+")));
  return fmt::format("⟨{}⟩ on {}", fmt::join(axes, " "), fmt::join(layout.devices, ","));
}

namespace {

// Splits axes so that their sizes are `sizes` (a refinement of theirs), keeping row-major order.
bool refine(Layout& layout, const std::vector<int>& sizes, const Shape& shape) {
  std::vector<Axis> axes;
  size_t at = 0;
  for (const Axis& axis : layout.axes) {
    int rest = axis.size;
    bool several = false;
    while (rest > 1) {
      if (at >= sizes.size() || rest % sizes[at] != 0) return false;
      several = several || sizes[at] != rest;
      axes.push_back({sizes[at], axis.kind, axis.dim, axis.sizes});
      rest /= sizes[at++];
    }
    // A cut in two goes gives the same parts only where it divides evenly.
    if (several && axis.kind == AxisKind::split &&
        (shape.at(static_cast<size_t>(axis.dim)) % axis.size != 0 || !axis.sizes.empty()))
      return false;
  }
  if (at != sizes.size()) return false;
  layout.axes = std::move(axes);
  return true;
}

// The coarsest sizes that refine both, or empty if none in row-major order.
std::vector<int> common_sizes(const std::vector<Axis>& a, const std::vector<Axis>& b) {
  std::vector<int> sizes;
  size_t i = 0, j = 0;
  int x = 1, y = 1;
  while (true) {
    while (x == 1 && i < a.size()) x = a[i++].size;
    while (y == 1 && j < b.size()) y = b[j++].size;
    if (x == 1 && y == 1) return sizes;
    // Leading factors are taken first: they are the coarser coordinates.
    if (x % y == 0) {
      sizes.push_back(y);
      x /= y;
      y = 1;
    } else if (y % x == 0) {
      sizes.push_back(x);
      y /= x;
      x = 1;
    } else {
      return {};
    }
  }
}

// Reorders the axes so that `devices` becomes ascending. Fails if the order is not one of a mesh,
// or if two axes that cut one dimension would change places.
bool sort_devices(Layout& layout) {
  layout = layout.simplified();
  if (std::is_sorted(layout.devices.begin(), layout.devices.end())) return true;
  auto sorted = layout.devices;
  std::sort(sorted.begin(), sorted.end());
  const auto rank_of = [&](int device) {
    return static_cast<int>(std::lower_bound(sorted.begin(), sorted.end(), device) -
                            sorted.begin());
  };
  const size_t n = layout.axes.size();
  std::vector<int> strides(n), order(n);
  const int origin = rank_of(layout.devices[0]);
  int step = static_cast<int>(layout.devices.size());
  for (size_t a = 0; a < n; ++a) {
    step /= layout.axes[a].size;
    strides[a] = rank_of(layout.devices[static_cast<size_t>(step)]) - origin;
  }
  for (size_t p = 0; p < layout.devices.size(); ++p) {
    const auto c = layout.coordinates(static_cast<int>(p));
    int expected = origin;
    for (size_t a = 0; a < n; ++a) expected += c[a] * strides[a];
    if (rank_of(layout.devices[p]) != expected) return false;
  }
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int x, int y) {
    return strides[static_cast<size_t>(x)] > strides[static_cast<size_t>(y)];
  });
  Layout out{sorted, {}};
  for (size_t k = 0; k < n; ++k) {
    const Axis& axis = layout.axes[static_cast<size_t>(order[k])];
    for (size_t j = 0; j < k; ++j) {
      const Axis& before = layout.axes[static_cast<size_t>(order[j])];
      const bool same = axis.kind != AxisKind::replicate && before.kind == axis.kind &&
                        (axis.kind == AxisKind::value || before.dim == axis.dim);
      if (same && order[j] > order[k]) return false;
    }
    out.axes.push_back(axis);
  }
  // The strides must be those of a row-major walk over the sorted devices.
  int expected = static_cast<int>(sorted.size());
  for (size_t k = 0; k < n; ++k) {
    expected /= out.axes[k].size;
    if (strides[static_cast<size_t>(order[k])] != expected) return false;
  }
  layout = std::move(out);
  return true;
}

// Whether all parts of a dimension are equally long.
bool is_even(const Layout& layout, int dim, const Shape& shape) {
  int64_t parts = 1;
  for (const Axis& axis : layout.axes) {
    if (axis.kind != AxisKind::split || axis.dim != dim) continue;
    if (!axis.sizes.empty()) return false;
    parts *= axis.size;
  }
  return shape.at(static_cast<size_t>(dim)) % parts == 0;
}

// Makes neighbouring cuts of one dimension one where that gives the same parts: one collective then
// does what would take one for each.
void join_cuts(Layout& layout, const Shape& shape) {
  std::vector<Axis> axes;
  for (const Axis& axis : layout.axes) {
    if (axis.size == 1) continue;
    Axis* last = axes.empty() ? nullptr : &axes.back();
    if (last != nullptr && axis.kind == AxisKind::split && last->kind == AxisKind::split &&
        last->dim == axis.dim && is_even(layout, axis.dim, shape))
      last->size *= axis.size;
    else
      axes.push_back(axis);
  }
  layout.axes = std::move(axes);
}

}  // namespace

bool align(Layout& a, Layout& b, const Shape& shape) {
  Layout x = a, y = b;
  // Ascending devices where a mesh allows it: then positions in a group are coordinates.
  if (!sort_devices(x) || !sort_devices(y)) {
    x = a;
    y = b;
  }
  if (x.devices != y.devices) return false;
  join_cuts(x, shape);
  join_cuts(y, shape);
  if (x.devices.size() > 1) {
    const auto sizes = common_sizes(x.axes, y.axes);
    if (sizes.empty() || !refine(x, sizes, shape) || !refine(y, sizes, shape)) return false;
    // No collective makes parts of given sizes, or joins them.
    for (size_t i = 0; i < x.axes.size(); ++i)
      if (x.axes[i].sizes != y.axes[i].sizes) return false;
  } else {
    x.axes.clear();
    y.axes.clear();
  }
  a = std::move(x);
  b = std::move(y);
  return true;
}

}  // namespace nns::lower
