#include "lower/adapter.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

#include "base/error.h"

namespace nns::lower {
namespace {

constexpr const char* kNames[] = {"chunk",          "value_chunk", "all_reduce", "all_gather",
                                  "reduce_scatter", "all_to_all",  "move"};

// A node of the search: what each mesh axis does, and in which order splits of a dimension nest
// (`rank` of an axis among the splits; larger is finer).
struct AxisState {
  AxisKind kind;
  int dim;
  int rank;
  auto operator<=>(const AxisState&) const = default;
};
using StateKey = std::vector<AxisState>;

StateKey state_of(const Layout& layout) {
  StateKey key;
  std::map<int, int> cuts;
  for (const Axis& a : layout.axes)
    key.push_back(a.kind == AxisKind::split ? AxisState{a.kind, a.dim, cuts[a.dim]++}
                                            : AxisState{a.kind, 0, 0});
  return key;
}

int cuts_of(const StateKey& key, int dim) {
  int n = 0;
  for (const auto& a : key) n += a.kind == AxisKind::split && a.dim == dim;
  return n;
}

// A Layout keeps nesting by axis order, so a state whose ranks disagree with it has no Layout.
bool nests_in_order(const StateKey& key) {
  std::map<int, int> seen;
  for (const auto& a : key)
    if (a.kind == AxisKind::split && a.rank != seen[a.dim]++) return false;
  return true;
}

Layout layout_of(const Layout& mesh, const StateKey& key) {
  Layout out{mesh.devices, {}};
  for (size_t i = 0; i < key.size(); ++i)
    out.axes.push_back({mesh.axes[i].size, key[i].kind, key[i].dim, mesh.axes[i].sizes});
  return out;
}

struct Edge {
  Primitive primitive;
  std::vector<int> axes;
  int dim, from;
  StateKey to;
};

// Elements that the busiest device holds under a state.
int64_t local_elements(const Layout& mesh, const StateKey& key, const Shape& shape) {
  const Layout layout = layout_of(mesh, key);
  return numel(layout.local_shape(shape, layout.devices[0]));
}

class MeshSearch {
 public:
  MeshSearch(const Layout& from, const Layout& to, const TensorType& type, const LinkCosts& costs)
      : mesh_(from), start_(state_of(from)), goal_(state_of(to)), type_(type), costs_(costs) {}

  // Dijkstra; nothing if no path of collectives exists.
  bool run(Adapter& out) {
    using Item = std::tuple<double, size_t, StateKey>;
    std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
    std::map<StateKey, double> best;
    std::map<StateKey, std::pair<StateKey, Edge>> came;
    size_t serial = 0;
    queue.emplace(0.0, serial++, start_);
    best[start_] = 0;
    while (!queue.empty()) {
      const auto [cost, order, key] = queue.top();
      queue.pop();
      if (cost > best[key]) continue;
      if (key == goal_) break;
      for (const Edge& edge : edges(key)) {
        const double next = cost + seconds(key, edge);
        const auto known = best.find(edge.to);
        if (known != best.end() && known->second <= next) continue;
        best[edge.to] = next;
        came.insert_or_assign(edge.to, std::make_pair(key, edge));
        queue.emplace(next, serial++, edge.to);
      }
    }
    if (!best.contains(goal_)) return false;
    out.seconds = best[goal_];
    for (StateKey key = goal_; key != start_;) {
      const auto& [before, edge] = came.at(key);
      out.steps.push_back({edge.primitive,
                           edge.axes,
                           edge.dim,
                           edge.from,
                           layout_of(mesh_, before),
                           layout_of(mesh_, key),
                           {}});
      out.bytes += bytes(before, edge);
      key = StateKey(before);
    }
    std::reverse(out.steps.begin(), out.steps.end());
    return true;
  }

 private:
  int ranks(const Edge& edge) const {
    int n = 1;
    for (int a : edge.axes) n *= mesh_.axes[static_cast<size_t>(a)].size;
    return n;
  }

  int64_t bytes(const StateKey& key, const Edge& edge) const {
    const int64_t local = local_elements(mesh_, key, type_.shape), n = ranks(edge);
    const int64_t whole = edge.primitive == Primitive::all_gather ? local * n : local;
    return ring_bytes(edge.primitive, whole, size_of(type_.dtype), static_cast<int>(n));
  }

  double seconds(const StateKey& key, const Edge& edge) const {
    if (edge.primitive == Primitive::chunk || edge.primitive == Primitive::value_chunk)
      return 1e-9;  // local, but never free: prefer no step
    bool across = false;
    for (int a : edge.axes)
      across = across || cost::crosses_hosts(mesh_.group(mesh_.devices[0], a), costs_);
    const int messages = cost::ring_messages(communication_of(edge.primitive), ranks(edge));
    return cost::seconds_of(bytes(key, edge), messages, across, costs_);
  }

  void add(std::vector<Edge>& out, Edge edge) const {
    if (nests_in_order(edge.to)) out.push_back(std::move(edge));
  }

  std::vector<Edge> edges(const StateKey& key) const {
    std::vector<Edge> out;
    const int dims = static_cast<int>(type_.shape.size());
    std::vector<int> values;
    for (size_t i = 0; i < key.size(); ++i) {
      const int a = static_cast<int>(i);
      const AxisState& state = key[i];
      const auto with = [&](AxisState next) {
        StateKey to = key;
        to[i] = next;
        return to;
      };
      if (state.kind == AxisKind::split) {
        if (!mesh_.axes[i].sizes.empty()) continue;               // both sides have it
        if (state.rank != cuts_of(key, state.dim) - 1) continue;  // only the finest cut can move
        add(out, {Primitive::all_gather, {a}, state.dim, 0, with({AxisKind::replicate, 0, 0})});
        for (int d = 0; d < dims; ++d)
          if (d != state.dim)
            add(out, {Primitive::all_to_all,
                      {a},
                      d,
                      state.dim,
                      with({AxisKind::split, d, cuts_of(key, d)})});
      } else if (state.kind == AxisKind::value) {
        values.push_back(a);
        for (int d = 0; d < dims; ++d)
          add(out,
              {Primitive::reduce_scatter, {a}, d, 0, with({AxisKind::split, d, cuts_of(key, d)})});
      } else {
        for (int d = 0; d < dims; ++d)
          add(out, {Primitive::chunk, {a}, d, 0, with({AxisKind::split, d, cuts_of(key, d)})});
        add(out, {Primitive::value_chunk, {a}, 0, 0, with({AxisKind::value, 0, 0})});
      }
    }
    // One all-reduce over any set of value axes.
    for (uint32_t set = 1; set < (1u << values.size()); ++set) {
      Edge edge{Primitive::all_reduce, {}, 0, 0, key};
      for (size_t v = 0; v < values.size(); ++v)
        if (set >> v & 1u) {
          edge.axes.push_back(values[v]);
          edge.to[static_cast<size_t>(values[v])] = {AxisKind::replicate, 0, 0};
        }
      add(out, std::move(edge));
    }
    return out;
  }

  Layout mesh_;
  StateKey start_, goal_;
  TensorType type_;
  LinkCosts costs_;
};

std::vector<Range> overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::vector<Range> out;
  for (size_t d = 0; d < a.size(); ++d) {
    const Range r{std::max(a[d].start, b[d].start), std::min(a[d].stop, b[d].stop)};
    if (r.length() <= 0) return {};
    out.push_back(r);
  }
  return out;
}

void append(Adapter& out, Adapter more) {
  for (Step& s : more.steps) out.steps.push_back(std::move(s));
  out.seconds += more.seconds;
  out.bytes += more.bytes;
}

}  // namespace

std::vector<Move> moves_between(const Layout& from, const Layout& to, const Shape& shape) {
  std::vector<Move> moves;
  std::map<int, int64_t> load;
  for (int target : to.devices) {
    const Piece want = to.piece(shape, target);
    if (std::any_of(want.box.begin(), want.box.end(), [](Range r) { return r.length() == 0; }))
      continue;
    std::map<std::vector<std::pair<int64_t, int64_t>>, std::vector<int>> holders;
    for (int source : from.devices) {
      const auto common = overlap(from.piece(shape, source).box, want.box);
      if (common.empty() && !shape.empty()) continue;
      std::vector<std::pair<int64_t, int64_t>> key;
      for (const Range& r : common) key.emplace_back(r.start, r.stop);
      holders[key].push_back(source);
    }
    for (const auto& [key, sources] : holders) {
      std::vector<Range> box;
      int64_t elements = 1;
      for (const auto& [start, stop] : key) {
        box.push_back({start, stop});
        elements *= stop - start;
      }
      int chosen = sources[0];
      if (std::find(sources.begin(), sources.end(), target) != sources.end())
        chosen = target;
      else
        for (int s : sources)
          if (load[s] < load[chosen]) chosen = s;
      if (chosen != target) load[chosen] += elements;
      moves.push_back({chosen, target, std::move(box)});
    }
  }
  return moves;
}

namespace {

// A region in the coordinates of the piece that starts at `origin`.
void append_region(Shape& out, int device, const std::vector<Range>& box,
                   const std::vector<Range>& origin) {
  out.push_back(device);
  for (size_t d = 0; d < box.size(); ++d) {
    out.push_back(box[d].start - origin[d].start);
    out.push_back(box[d].length());
  }
}

}  // namespace

Shape sends_of(const std::vector<Move>& moves, const Piece& piece, int device) {
  Shape out;
  for (const Move& m : moves)
    if (m.source == device) append_region(out, m.target, m.box, piece.box);
  return out;
}

Shape receives_of(const std::vector<Move>& moves, const Piece& piece, int device) {
  Shape out;
  for (const Move& m : moves)
    if (m.target == device) append_region(out, m.source, m.box, piece.box);
  return out;
}

Layout summed(Layout layout) {
  for (Axis& a : layout.axes)
    if (a.kind == AxisKind::value) a.kind = AxisKind::replicate;
  return layout;
}

std::string_view name_of(Primitive primitive) {
  return kNames[static_cast<size_t>(primitive)];
}

operators::Communication communication_of(Primitive primitive) {
  using enum operators::Communication;
  static constexpr operators::Communication kinds[] = {
      none, value_chunk, all_reduce, all_gather, reduce_scatter, all_to_all, move};
  return kinds[static_cast<size_t>(primitive)];
}

int64_t ring_bytes(Primitive primitive, int64_t elements, int64_t element_bytes, int ranks) {
  return cost::ring_bytes(communication_of(primitive), elements, element_bytes, ranks);
}

Adapter find_adapter(const Layout& from, const Layout& to, const TensorType& type,
                     const LinkCosts& costs) {
  Adapter out;
  if (same_pieces(from, to, type.shape)) return out;
  Layout a = from, b = to;
  if (align(a, b, type.shape) && MeshSearch(a, b, type, costs).run(out)) return out;
  if (to.has_value_axis()) {
    if (from.devices.size() != to.devices.size() || !from.has_value_axis())
      fail(ErrorKind::plan, "[lower.adapter] no way from {} to {} for {}", to_string(from),
           to_string(to), to_string(type));
  }
  // Sum first (where the data is), move, then cut or share on the other side.
  Layout source = from;
  if (from.has_value_axis()) {
    source = summed(from);
    append(out, find_adapter(from, source, type, costs));
  }
  const Layout target = summed(to);
  if (!same_pieces(source, target, type.shape)) {
    Step step{Primitive::move, {}, 0, 0, source, target, moves_between(source, target, type.shape)};
    std::map<int, int64_t> sent;
    std::map<int, int> messages;
    bool across = false;
    for (const Move& m : step.moves) {
      if (m.source == m.target) continue;
      int64_t elements = 1;
      for (const Range& r : m.box) elements *= r.length();
      sent[m.source] += elements * size_of(type.dtype);
      ++messages[m.source];
      across = across || cost::crosses_hosts(std::vector<int>{m.source, m.target}, costs);
    }
    int64_t most = 0;
    int count = 0;
    for (const auto& [device, bytes] : sent) most = std::max(most, bytes);
    for (const auto& [device, n] : messages) count = std::max(count, n);
    out.bytes += most;
    out.seconds += cost::seconds_of(most, count, across, costs);
    out.steps.push_back(std::move(step));
  }
  if (to.has_value_axis()) {
    Layout a2 = target, b2 = to;
    Adapter last;
    if (!align(a2, b2, type.shape) || !MeshSearch(a2, b2, type, costs).run(last))
      fail(ErrorKind::plan, "[lower.adapter] no way from {} to {} for {}", to_string(from),
           to_string(to), to_string(type));
    append(out, std::move(last));
  }
  return out;
}

}  // namespace nns::lower
