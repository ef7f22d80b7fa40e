// Layouts and adapters against brute force: tensors of small integers are laid out on imagined
// devices, every step of an adapter is carried out on them, and what each device ends up with is
// compared with its piece of the whole.
#include <fmt/format.h>
#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <map>

#include "base/error.h"
#include "lower/adapter.h"
#include "support/golden.h"

using namespace nns;
using namespace nns::lower;

namespace {

using Local = std::map<std::vector<int64_t>, double>;  // index in the whole tensor → element
using World = std::map<int, Local>;                    // device → what it holds

std::vector<std::vector<int64_t>> indices(const std::vector<Range>& box) {
  std::vector<std::vector<int64_t>> out{{}};
  for (const Range& r : box) {
    std::vector<std::vector<int64_t>> next;
    for (const auto& prefix : out)
      for (int64_t i = r.start; i < r.stop; ++i) {
        next.push_back(prefix);
        next.back().push_back(i);
      }
    out = std::move(next);
  }
  return out;
}

double element(const std::vector<int64_t>& index) {
  double v = 1;
  for (int64_t i : index) v = v * 17 + static_cast<double>(i);
  return v;
}

// Addend k of n of an element; they sum to it exactly.
double addend(const std::vector<int64_t>& index, int k, int n) {
  if (k > 0) return 1000.0 * k;
  double rest = element(index);
  for (int j = 1; j < n; ++j) rest -= 1000.0 * j;
  return rest;
}

World lay_out(const Layout& layout, const Shape& shape) {
  World world;
  for (int d : layout.devices) {
    const Piece p = layout.piece(shape, d);
    for (const auto& i : indices(p.box)) world[d][i] = addend(i, p.addend, p.addends);
    world[d];
  }
  return world;
}

// What the device must hold is its box; addends must sum to the element over a value group.
void check_holds(const World& world, const Layout& layout, const Shape& shape) {
  std::map<std::vector<int64_t>, std::map<int, double>> sums;  // index → addend → value
  for (int d : layout.devices) {
    const Piece p = layout.piece(shape, d);
    const auto want = indices(p.box);
    RC_ASSERT(world.at(d).size() == want.size());
    for (const auto& i : want) {
      RC_ASSERT(world.at(d).contains(i));
      const double got = world.at(d).at(i);
      auto& of = sums[i];
      if (of.contains(p.addend)) RC_ASSERT(of[p.addend] == got);
      of[p.addend] = got;
    }
  }
  for (const auto& [i, parts] : sums) {
    double total = 0;
    for (const auto& [k, v] : parts) total += v;
    RC_ASSERT(total == element(i));
  }
}

std::vector<int> group_over(const Layout& layout, int device, const std::vector<int>& axes) {
  const auto mine = layout.coordinates(layout.position_of(device));
  std::vector<int> out;
  for (size_t p = 0; p < layout.devices.size(); ++p) {
    const auto c = layout.coordinates(static_cast<int>(p));
    bool same = true;
    for (size_t a = 0; a < c.size(); ++a)
      if (std::find(axes.begin(), axes.end(), static_cast<int>(a)) == axes.end())
        same = same && c[a] == mine[a];
    if (same) out.push_back(layout.devices[p]);
  }
  return out;
}

World carry_out(const Step& step, const World& before, const Shape& shape) {
  World after;
  if (step.primitive == Primitive::move) {
    for (int d : step.after.devices) after[d];
    for (const Move& m : step.moves)
      for (const auto& i : indices(m.box)) after[m.target][i] = before.at(m.source).at(i);
    return after;
  }
  for (int d : step.before.devices) {
    const auto group = group_over(step.before, d, step.axes);
    const auto box = step.after.piece(shape, d).box;
    for (const auto& i : indices(box)) {
      switch (step.primitive) {
        case Primitive::chunk:
          after[d][i] = before.at(d).at(i);
          break;
        case Primitive::value_chunk:
          after[d][i] = group[0] == d ? before.at(d).at(i) : 0;
          break;
        case Primitive::all_reduce:
        case Primitive::reduce_scatter: {
          double sum = 0;
          for (int g : group) sum += before.at(g).at(i);
          after[d][i] = sum;
          break;
        }
        default:  // all_gather, all_to_all: somebody in the group has it
          for (int g : group)
            if (before.at(g).contains(i)) after[d][i] = before.at(g).at(i);
      }
    }
    after[d];
  }
  return after;
}

Layout random_layout(const std::vector<int>& devices, const Shape& shape, bool values) {
  const size_t dims = shape.size();
  Layout layout{devices, {}};
  int rest = static_cast<int>(devices.size());
  while (rest > 1) {
    std::vector<int> sizes;
    for (int s = 2; s <= rest; ++s)
      if (rest % s == 0) sizes.push_back(s);
    const int size = *rc::gen::elementOf(sizes);
    const int kind = *rc::gen::inRange(0, values ? 3 : 2);
    Axis axis{size, AxisKind::replicate, 0};
    if (kind == 1 && dims > 0) {
      axis = {size, AxisKind::split, *rc::gen::inRange(0, static_cast<int>(dims))};
      const bool first = std::none_of(layout.axes.begin(), layout.axes.end(), [&](const Axis& a) {
        return a.kind == AxisKind::split && a.dim == axis.dim;
      });
      if (first && *rc::gen::inRange(0, 4) == 0) {  // parts of given sizes
        int64_t left = shape[static_cast<size_t>(axis.dim)];
        for (int i = 1; i < size; ++i) {
          axis.sizes.push_back(*rc::gen::inRange<int64_t>(0, left + 1));
          left -= axis.sizes.back();
        }
        axis.sizes.push_back(left);
      }
    }
    if (kind == 2) axis.kind = AxisKind::value;
    layout.axes.push_back(axis);
    rest /= size;
  }
  if (layout.axes.empty()) layout.axes.push_back({1, AxisKind::replicate, 0});
  return layout;
}

std::vector<int> shuffled(int first, int n) {
  std::vector<int> devices;
  for (int i = 0; i < n; ++i) devices.push_back(first + i);
  if (*rc::gen::inRange(0, 3) == 0)
    for (int i = n; i-- > 1;)
      std::swap(devices[static_cast<size_t>(i)],
                devices[static_cast<size_t>(*rc::gen::inRange(0, i + 1))]);
  return devices;
}

void check_adapter(const Layout& from, const Layout& to, const Shape& shape) {
  const Adapter adapter = find_adapter(from, to, {shape, DType::f32});
  World world = lay_out(from, shape);
  for (const Step& step : adapter.steps) world = carry_out(step, world, shape);
  check_holds(world, to, shape);
}

}  // namespace

TEST_CASE("parts of a length differ by at most one and cover it") {
  rc::check([] {
    const int64_t n = *rc::gen::inRange(0, 20);
    const int parts = *rc::gen::inRange(1, 9);
    int64_t at = 0;
    for (int i = 0; i < parts; ++i) {
      const Range r = part_of({0, n}, i, parts);
      RC_ASSERT(r.start == at);
      RC_ASSERT(r.length() == n / parts || r.length() == n / parts + 1);
      at = r.stop;
    }
    RC_ASSERT(at == n);
  });
}

TEST_CASE("an adapter inside a device set leaves every device with its piece") {
  CHECK(rc::check([] {
    const int n = *rc::gen::element(1, 2, 3, 4, 6, 8);
    Shape shape;
    const int dims = *rc::gen::inRange(1, 4);
    for (int d = 0; d < dims; ++d) shape.push_back(*rc::gen::element<int64_t>(0, 1, 2, 3, 4, 7, 8));
    const auto from = random_layout(shuffled(0, n), shape, true);
    const auto to = random_layout(shuffled(0, n), shape, false);
    check_adapter(from, to, shape);
  }));
}

TEST_CASE("an adapter between device sets leaves every device with its piece") {
  CHECK(rc::check([] {
    Shape shape;
    const int dims = *rc::gen::inRange(0, 3);
    for (int d = 0; d < dims; ++d) shape.push_back(*rc::gen::element<int64_t>(0, 1, 2, 3, 4, 5, 8));
    const auto from = random_layout(shuffled(0, *rc::gen::inRange(1, 5)), shape, true);
    const auto to =
        random_layout(shuffled(*rc::gen::element(4, 2, 8), *rc::gen::inRange(1, 7)), shape, false);
    check_adapter(from, to, shape);
  }));
}

TEST_CASE("one device set: the collective that each pair of layouts asks for") {
  const std::vector<int> four{0, 1, 2, 3};
  const TensorType type{{8, 8}, DType::f32};
  const auto one = [&](AxisKind from, int i, AxisKind to, int j) {
    const Adapter a = find_adapter({four, {{4, from, i}}}, {four, {{4, to, j}}}, type);
    std::string names;
    for (const Step& s : a.steps)
      names += std::string(names.empty() ? "" : " ") + std::string(name_of(s.primitive));
    return names;
  };
  using enum AxisKind;
  CHECK(one(value, 0, replicate, 0) == "all_reduce");
  CHECK(one(value, 0, split, 1) == "reduce_scatter");
  CHECK(one(split, 0, replicate, 0) == "all_gather");
  CHECK(one(split, 0, split, 1) == "all_to_all");
  CHECK(one(replicate, 0, split, 1) == "chunk");
  CHECK(one(replicate, 0, value, 0) == "value_chunk");
  CHECK(one(replicate, 0, replicate, 0).empty());
}

TEST_CASE("two value axes are summed by one all-reduce") {
  const std::vector<int> four{0, 1, 2, 3};
  const Layout from{four, {{2, AxisKind::value, 0}, {2, AxisKind::value, 0}}};
  const Adapter a = find_adapter(from, Layout::replicated(four), {{8}, DType::f32});
  REQUIRE(a.steps.size() == 1);
  CHECK(a.steps[0].primitive == Primitive::all_reduce);
}

TEST_CASE("payload of ring collectives is the closed form of the padded size") {
  CHECK(ring_bytes(Primitive::all_reduce, 10, 4, 4) == 2 * 3 * 3 * 4);
  CHECK(ring_bytes(Primitive::all_gather, 12, 8, 4) == 3 * 3 * 8);
  CHECK(ring_bytes(Primitive::reduce_scatter, 7, 4, 2) == 4 * 4);
}

// All ways to lay [6, 8] out over four devices in one or two axes.
static std::vector<Layout> layouts_of_four() {
  using enum AxisKind;
  const std::vector<std::pair<AxisKind, int>> ways{
      {replicate, 0}, {split, 0}, {split, 1}, {value, 0}};
  std::vector<Layout> all;
  for (const auto& [kind, dim] : ways) all.push_back({{0, 1, 2, 3}, {{4, kind, dim}}});
  for (const auto& [outer, a] : ways)
    for (const auto& [inner, b] : ways)
      all.push_back({{0, 1, 2, 3}, {{2, outer, a}, {2, inner, b}}});
  all.push_back({{0, 1, 2, 3}, {{4, split, 0, {3, 1, 0, 2}}}});
  all.push_back({{2, 0, 3, 1}, {{2, replicate, 0}, {2, split, 1}}});
  all.push_back({{0, 1}, {{2, split, 0}}});
  all.push_back({{3, 4, 5}, {{3, split, 1}}});
  return all;
}

TEST_CASE("adapters between all layouts of four devices are those of before") {
  LinkCosts costs;
  costs.devices_per_node = 2;
  std::string text;
  for (const Layout& from : layouts_of_four())
    for (const Layout& to : layouts_of_four()) {
      if (to.has_value_axis() && from.devices != to.devices) continue;
      Adapter adapter;
      try {
        adapter = find_adapter(from, to, {{6, 8}, DType::f32}, costs);
      } catch (const Error& e) {
        text += fmt::format("{}\n", e.what());
        continue;
      }
      text += fmt::format("{} → {}: {:.4g} us, {} bytes", to_string(from), to_string(to),
                          adapter.seconds * 1e6, adapter.bytes);
      for (const Step& step : adapter.steps) {
        text += fmt::format("; {} {}", name_of(step.primitive), to_string(step.after));
        for (const Move& move : step.moves)
          text += fmt::format(" {}>{}:{}-{},{}-{}", move.source, move.target, move.box[0].start,
                              move.box[0].stop, move.box[1].start, move.box[1].stop);
      }
      text += "\n";
    }
  test::is_golden("adapters", text);
}
