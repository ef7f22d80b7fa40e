// Seconds that an adapter is said to take, against the closed forms of ring collectives computed
// here step by step.
#include <rapidcheck.h>
#include <catch2/catch.hpp>
#include <map>

#include "lower/adapter.h"

using namespace nns;
using namespace nns::lower;

namespace {

constexpr LinkCosts kCosts{.call = 3e-5,
                           .latency = 2e-6,
                           .seconds_per_byte = 1e-9,
                           .across_nodes = 7,
                           .devices_per_node = 4};

// A mesh of powers of two over devices 0 … n-1, whose axes lie in any order in the numbers of the
// devices: axis a steps by strides[a]. The groups of an axis all cross hosts, or none does.
struct Mesh {
  std::vector<int> sizes, strides;

  std::vector<int> devices() const {
    std::vector<int> out{0};
    for (size_t a = 0; a < sizes.size(); ++a) {
      std::vector<int> next;
      for (int base : out)
        for (int i = 0; i < sizes[a]; ++i) next.push_back(base + i * strides[a]);
      out = std::move(next);
    }
    return out;
  }
};

Mesh random_mesh() {
  Mesh mesh;
  const int axes = *rc::gen::inRange(1, 4);
  for (int a = 0; a < axes; ++a) mesh.sizes.push_back(*rc::gen::element(2, 4));
  std::vector<size_t> order(mesh.sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i-- > 1;)
    std::swap(order[i], order[*rc::gen::inRange<size_t>(0, i + 1)]);
  mesh.strides.resize(order.size());
  int stride = 1;
  for (size_t a : order) {
    mesh.strides[a] = stride;
    stride *= mesh.sizes[a];
  }
  return mesh;
}

// What a rank of n sends in a ring, in elements, where the whole has `whole`, a multiple of n.
int64_t ring(Primitive primitive, int64_t whole, int64_t n) {
  switch (primitive) {
    case Primitive::all_reduce:
      return 2 * (n - 1) * (whole / n);
    case Primitive::all_gather:
    case Primitive::reduce_scatter:
    case Primitive::all_to_all:
      return (n - 1) * (whole / n);
    default:
      return 0;
  }
}

struct Cost {
  double seconds = 0;
  int64_t bytes = 0;
};

bool same_host(int a, int b) {
  return a / kCosts.devices_per_node == b / kCosts.devices_per_node;
}

Cost seconds_of(int64_t bytes, int messages, bool across) {
  return {
      kCosts.call + messages * kCosts.latency +
          static_cast<double>(bytes) * kCosts.seconds_per_byte * (across ? kCosts.across_nodes : 1),
      bytes};
}

Cost move_by_hand(const Step& step, const TensorType& type) {
  std::map<int, std::pair<int64_t, int>> sent;  // by device: bytes, messages
  bool across = false;
  for (const Move& m : step.moves) {
    if (m.source == m.target) continue;
    int64_t bytes = size_of(type.dtype);
    for (const Range& r : m.box) bytes *= r.length();
    sent[m.source].first += bytes;
    ++sent[m.source].second;
    across = across || !same_host(m.source, m.target);
  }
  int64_t bytes = 0;
  int messages = 0;
  for (const auto& [device, of] : sent) {
    bytes = std::max(bytes, of.first);
    messages = std::max(messages, of.second);
  }
  return seconds_of(bytes, messages, across);
}

Cost by_hand(const Step& step, const TensorType& type) {
  if (step.primitive == Primitive::move) return move_by_hand(step, type);
  if (step.primitive == Primitive::chunk || step.primitive == Primitive::value_chunk)
    return {1e-9, 0};
  int n = 1;
  bool across = false;
  for (int a : step.axes) {
    n *= step.before.axes[static_cast<size_t>(a)].size;
    for (int d : step.before.devices)
      for (int other : step.before.group(d, a)) across = across || !same_host(d, other);
  }
  int64_t held = numel(step.before.local_shape(type.shape, step.before.devices[0]));
  if (step.primitive == Primitive::all_gather) held *= n;
  const int64_t bytes = ring(step.primitive, held, n) * size_of(type.dtype);
  return seconds_of(bytes, step.primitive == Primitive::all_reduce ? 2 * (n - 1) : n - 1, across);
}

Layout random_layout(const Mesh& mesh, bool values) {
  Layout layout{mesh.devices(), {}};
  for (int size : mesh.sizes) {
    Axis axis{size, *rc::gen::element(AxisKind::replicate, AxisKind::split), 0};
    if (values && *rc::gen::inRange(0, 2) == 0) axis.kind = AxisKind::value;
    if (axis.kind == AxisKind::split) axis.dim = *rc::gen::inRange(0, 2);
    layout.axes.push_back(axis);
  }
  return layout;
}

}  // namespace

TEST_CASE("an adapter costs what its collectives cost by hand") {
  CHECK(rc::check([] {
    const Mesh mesh = random_mesh();
    const TensorType type{{256, 512}, *rc::gen::element(DType::f32, DType::f64)};
    const Layout from = random_layout(mesh, true), to = random_layout(mesh, false);
    const Adapter adapter = find_adapter(from, to, type, kCosts);
    Cost sum;
    for (const Step& step : adapter.steps) {
      const Cost cost = by_hand(step, type);
      sum.seconds += cost.seconds;
      sum.bytes += cost.bytes;
    }
    RC_ASSERT(std::abs(adapter.seconds - sum.seconds) <= 1e-12);
    RC_ASSERT(adapter.bytes == sum.bytes);
  }));
}

TEST_CASE("an all-reduce takes two rounds of the ring") {
  const TensorType type{{1024}, DType::f32};
  for (int n : {2, 4}) {
    std::vector<int> devices;
    for (int i = 0; i < n; ++i) devices.push_back(i);
    const Layout from{devices, {{n, AxisKind::value, 0}}};
    const Adapter sum = find_adapter(from, Layout::replicated(devices), type, kCosts);
    const double bytes = 2.0 * (n - 1) * (1024.0 / n) * 4;
    CHECK(sum.seconds == Approx(3e-5 + 2 * (n - 1) * 2e-6 + bytes * 1e-9).epsilon(1e-12));
  }
}

TEST_CASE("links between hosts count on whichever axis they lie") {
  const TensorType type{{1024}, DType::f32};
  using enum AxisKind;
  const auto seconds = [&](std::vector<int> devices) {
    const Layout from{devices, {{2, value, 0}, {2, value, 0}}};
    return find_adapter(from, Layout::replicated(devices), type, kCosts).seconds;
  };
  const double near = seconds({0, 1, 2, 3});
  const double far = near + 2.0 * 3 * 256 * 4 * 1e-9 * (7 - 1);
  CHECK(near == Approx(3e-5 + 6 * 2e-6 + 2.0 * 3 * 256 * 4 * 1e-9).epsilon(1e-12));
  CHECK(seconds({0, 1, 4, 5}) == Approx(far).epsilon(1e-12));  // the first axis crosses
  CHECK(seconds({0, 4, 1, 5}) == Approx(far).epsilon(1e-12));  // the second one does
}

TEST_CASE("a move costs what its busiest device sends") {
  // Device 0 sends one half to each of 4 and 5, which lie on another host.
  const TensorType type{{8, 4}, DType::f64};
  const Layout from = Layout::replicated({0}), to{{4, 5}, {{2, AxisKind::split, 0}}};
  const Adapter move = find_adapter(from, to, type, kCosts);
  CHECK(move.bytes == 8 * 4 * 8);
  CHECK(move.seconds == Approx(3e-5 + 2 * 2e-6 + 8 * 4 * 8 * 1e-9 * 7).epsilon(1e-12));
  const Layout near{{1, 2}, {{2, AxisKind::split, 0}}};
  CHECK(find_adapter(from, near, type, kCosts).seconds ==
        Approx(3e-5 + 2 * 2e-6 + 8 * 4 * 8 * 1e-9).epsilon(1e-12));
}
