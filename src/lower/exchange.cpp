#include "lower/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace nns::lower {

void AdapterCount::add(const AdapterCount& other) {
  all += other.all;
  paired += other.paired;
  for (const auto& [pair, times] : other.pairs) pairs[pair] += times;
}

namespace {

// Which axes of `use.layout`, cut finer as `mesh`, have partial gradients. Axis sizes of `mesh` are
// a refinement of those of `use.layout` in the order that `align` gave; the partial ones are found
// by aligning a layout that has value axes in their place. Nothing where no mesh has them all.
std::optional<std::vector<bool>> partial_axes(const Layout& from, const OperandUse& use,
                                              const Layout& mesh, const Shape& shape) {
  Layout marked = use.layout, other = from;
  bool any = false;
  for (size_t a = 0; a < marked.axes.size(); ++a) {
    const bool partial = use.partial[a] && marked.axes[a].size > 1;
    any = any || partial;
    if (marked.axes[a].kind == AxisKind::replicate)
      marked.axes[a].kind = partial ? AxisKind::value : AxisKind::replicate;
  }
  std::vector<bool> out(mesh.axes.size(), false);
  if (!any) return out;
  if (!align(other, marked, shape) || marked.axes.size() != mesh.axes.size()) return std::nullopt;
  for (size_t a = 0; a < out.size(); ++a) out[a] = marked.axes[a].kind == AxisKind::value;
  return out;
}

// In the order of the layout's devices.
Shape members_of(const Layout& layout, const std::vector<int>& axes, int device) {
  const auto mine = layout.coordinates(layout.position_of(device));
  Shape members;
  for (size_t p = 0; p < layout.devices.size(); ++p) {
    const auto c = layout.coordinates(static_cast<int>(p));
    bool member = true;
    for (size_t a = 0; a < c.size(); ++a)
      if (std::find(axes.begin(), axes.end(), static_cast<int>(a)) == axes.end())
        member = member && c[a] == mine[a];
    if (member) members.push_back(layout.devices[p]);
  }
  return members;
}

}  // namespace

Shape group_of(const Layout& layout, const std::vector<int>& axes, int device) {
  Shape members = members_of(layout, axes, device);
  std::sort(members.begin(), members.end());
  return members;
}

Shape Exchange::group(const Layout& layout, const std::vector<int>& axes) const {
  return peers_.ranks([&](int device) { return group_of(layout, axes, device); });
}

Shape Exchange::sends(const Layout& from, const Layout& to, const Shape& shape) const {
  const auto moves = moves_between(from, to, shape);
  return peers_.moves(
      shape.size(), [&](int device) { return sends_of(moves, from.piece(shape, device), device); });
}

Shape Exchange::receives(const Layout& from, const Layout& to, const Shape& shape) const {
  const auto moves = moves_between(from, to, shape);
  return peers_.moves(shape.size(), [&](int device) {
    return receives_of(moves, to.piece(shape, device), device);
  });
}

Ref Exchange::apply(const char* op, Ref x, std::vector<NamedArg> args, const TensorType& type) {
  args.insert(args.begin(), {"self", x});
  const std::vector<TensorType> types{type};
  return tape_.apply(op, std::move(args), CallSite{}, &types).front();
}

std::vector<Step> Exchange::steps(const Layout& from, const Layout& to,
                                  const TensorType& whole) const {
  std::vector<Step> found = find_adapter(from, to, whole).steps;
  const bool ordered = std::all_of(found.begin(), found.end(), [&](const Step& s) {
    if (s.primitive == Primitive::move || s.primitive == Primitive::all_reduce) return true;
    return peers_.alike([&](int device) {
      const Shape members = members_of(s.before, s.axes, device);
      return std::is_sorted(members.begin(), members.end());
    });
  });
  if (ordered) return found;
  // Parts on descending devices, which a collective would join in the wrong order.
  const Layout source = summed(from);
  found = from.has_value_axis() ? steps(from, source, whole) : std::vector<Step>{};
  if (!same_pieces(source, to, whole.shape))
    found.push_back({Primitive::move, {}, 0, 0, source, to, {}});
  return found;
}

Ref Exchange::move(Ref x, const Step& step, const TensorType& whole) {
  const TensorType type{peers_.local_shape(step.after, whole.shape), whole.dtype};
  return apply("comm::move", x,
               {{"shape", type.shape},
                {"sends", sends(step.before, step.after, whole.shape)},
                {"receives", receives(step.before, step.after, whole.shape)},
                {"back_sends", sends(step.after, step.before, whole.shape)},
                {"back_receives", receives(step.after, step.before, whole.shape)}},
               type);
}

Ref Exchange::convert(Ref x, const Layout& from, const OperandUse& use, const TensorType& whole) {
  const std::vector<Step> path = steps(from, use.layout, whole);
  const bool moved = std::any_of(path.begin(), path.end(),
                                 [](const Step& s) { return s.primitive == Primitive::move; });
  Layout mesh = from, goal = use.layout;
  const auto done = [&](Ref made, bool summed_last) {
    const size_t calls = path.size() + (summed_last ? 1 : 0);
    if (calls > 0) ++count_.all;
    if (calls == 1 && !moved) ++count_.paired;
    return made;
  };
  std::optional<std::vector<bool>> lined_up;
  if (!path.empty() && !moved && align(mesh, goal, whole.shape))
    lined_up = partial_axes(from, use, goal, whole.shape);
  if (!lined_up) {
    for (const Step& step : path) x = collective(x, step, {}, whole);
    std::vector<int> axes;
    for (size_t a = 0; a < use.partial.size(); ++a)
      if (use.partial[a] && use.layout.axes[a].size > 1) axes.push_back(static_cast<int>(a));
    const Ref made = copied(x, use.layout, axes);
    return done(made, made.id != x.id);
  }
  std::vector<bool> partial = *lined_up;
  // What is left of the partial axes after each step, from the last to the first: a step that sums
  // them on the way back leaves whole gradients before it.
  std::vector<std::vector<int>> summed(path.size());
  for (size_t s = path.size(); s-- > 0;)
    for (int a : path[s].axes)
      if (static_cast<size_t>(a) < partial.size() && partial[static_cast<size_t>(a)]) {
        summed[s].push_back(a);
        partial[static_cast<size_t>(a)] = false;
      }
  for (size_t s = 0; s < path.size(); ++s) x = collective(x, path[s], summed[s], whole);
  std::vector<int> rest;
  for (size_t a = 0; a < partial.size(); ++a)
    if (partial[a]) rest.push_back(static_cast<int>(a));
  const Ref made = copied(x, goal, rest);
  return done(made, made.id != x.id);
}

Ref Exchange::owned(Ref x, const OperandUse& home) {
  std::vector<int> axes;
  for (size_t a = 0; a < home.partial.size(); ++a)
    if (home.partial[a] && home.layout.axes[a].size > 1) axes.push_back(static_cast<int>(a));
  if (axes.empty() || !tape_.requires_grad(x)) return x;
  return apply("comm::owned", x, {{"group", group(home.layout, axes)}}, e_.type(x));
}

// `summed`: axes over which the step sums the gradient on the way back.
Ref Exchange::collective(Ref x, const Step& step, const std::vector<int>& summed,
                         const TensorType& whole) {
  const TensorType type{peers_.local_shape(step.after, whole.shape), whole.dtype};
  if (step.primitive == Primitive::move) return move(x, step, whole);
  const Shape ranks = group(step.before, step.axes);
  const int64_t dim = step.dim;
  const auto length = [&](int d) { return type.shape.at(static_cast<size_t>(d)); };
  const auto start = [&](const Layout& a, const Layout& b) {
    return peers_.number([&](int device) {
      return a.piece(whole.shape, device).box[static_cast<size_t>(dim)].start -
             b.piece(whole.shape, device).box[static_cast<size_t>(dim)].start;
    });
  };
  switch (step.primitive) {
    case Primitive::all_reduce:
      count_pair(x, "all_reduce", summed.empty() ? "identity" : "all_reduce");
      return apply(
          "comm::all_reduce", x,
          {{"group", ranks}, {"grad_group", summed.empty() ? Shape{} : group(step.before, summed)}},
          type);
    case Primitive::all_gather:
      count_pair(x, "all_gather", summed.empty() ? "split" : "reduce_scatter");
      return apply("comm::all_gather", x,
                   {{"dim", dim},
                    {"whole", length(step.dim)},
                    {"group", ranks},
                    {"start", start(step.before, step.after)},
                    {"partial", !summed.empty()}},
                   type);
    case Primitive::chunk:
      count_pair(x, "split", "all_gather");
      return apply("comm::chunk", x,
                   {{"dim", dim},
                    {"start", start(step.after, step.before)},
                    {"length", length(step.dim)},
                    {"group", ranks}},
                   type);
    case Primitive::reduce_scatter:
      count_pair(x, "reduce_scatter", "all_gather");
      return apply("comm::reduce_scatter", x, {{"dim", dim}, {"group", ranks}}, type);
    case Primitive::all_to_all:
      count_pair(x, "all_to_all", "all_to_all");
      return apply("comm::all_to_all", x,
                   {{"dim", dim},
                    {"from", static_cast<int64_t>(step.from)},
                    {"whole", length(step.from)},
                    {"group", ranks}},
                   type);
    case Primitive::value_chunk:
      return apply("comm::value_chunk", x, {{"group", ranks}}, type);
    case Primitive::move:
      break;
  }
  fail(ErrorKind::internal, "[lower.exchange] {} is not a collective", name_of(step.primitive));
}

void Exchange::count_pair(Ref x, const char* forward, const char* backward) {
  if (tape_.requires_grad(x)) ++count_.pairs[fmt::format("{} / {}", forward, backward)];
}

Ref Exchange::copied(Ref x, const Layout& layout, const std::vector<int>& axes) {
  if (axes.empty() || !tape_.requires_grad(x)) return x;
  count_pair(x, "identity", "all_reduce");
  const Ref same = apply("comm::copy", x, {{"grad_group", group(layout, axes)}}, e_.type(x));
  auto& slots = e_.program().slots;
  slots[static_cast<size_t>(same.id)].name = slots[static_cast<size_t>(x.id)].name;
  return same;
}

}  // namespace nns::lower
