#include "lower/part.h"

#include <algorithm>

#include "base/error.h"
#include "operators/record.h"

namespace nns::lower {
namespace {

// Where the tensors of a node lie, by its placement.
class Here : public operators::Placed {
 public:
  explicit Here(const PartCall& call) : call_(call) {}

  const Shape& whole(std::string_view operand) const override {
    for (const NamedArg& a : call_.node.args)
      if (a.name == operand) return call_.graph.value(std::get<Ref>(a.value)).type.shape;
    NNS_CHECK(false, "{} has no operand {}", call_.node.op, operand);
  }
  Shape ranks_of(std::string_view operand,
                 const std::function<bool(int64_t dim)>& wanted) const override {
    return ranks(layout(operand),
                 [&](Axis a) { return a.kind == AxisKind::split && wanted(a.dim); });
  }
  int64_t place(std::string_view operand, int64_t dim,
                const std::function<int64_t(int64_t, int64_t)>& of) const override {
    return call_.exchange.peers().number([&](int device) {
      const Range here = range(operand, dim, device);
      return of(here.start, here.stop);
    });
  }
  int64_t length(std::string_view operand, int64_t dim) const override {
    return call_.exchange.peers().alike(
        [&](int device) { return range(operand, dim, device).length(); });
  }
  Shape ring(std::string_view operand, int64_t dim) const override {
    return call_.exchange.peers().ranks([&](int device) { return in_order(operand, dim, device); });
  }
  Shape lengths(std::string_view operand, int64_t dim) const override {
    return call_.exchange.peers().alike([&](int device) {
      Shape out;
      for (const int64_t member : in_order(operand, dim, device))
        out.push_back(range(operand, dim, static_cast<int>(member)).length());
      return out;
    });
  }
  int64_t position(std::string_view operand, int64_t dim) const override {
    return call_.exchange.peers().alike([&](int device) {
      const Shape all = in_order(operand, dim, device);
      return static_cast<int64_t>(std::find(all.begin(), all.end(), device) - all.begin());
    });
  }
  bool ascending(std::string_view operand, int64_t dim) const override {
    return call_.exchange.peers().alike([&](int device) {
      const Shape all = in_order(operand, dim, device);
      return std::is_sorted(all.begin(), all.end());
    });
  }
  Shape addends() const override {
    return ranks(call_.placed.outputs.at(0), [](Axis a) { return a.kind == AxisKind::value; });
  }

 private:
  Range range(std::string_view operand, int64_t dim, int device) const {
    return layout(operand).piece(whole(operand), device).box[static_cast<size_t>(dim)];
  }
  const Layout& layout(std::string_view operand) const {
    size_t i = 0;
    for (const NamedArg& a : call_.node.args) {
      if (a.name == operand) break;
      if (const auto* one = std::get_if<Ref>(&a.value)) i += one->id >= 0;
      if (const auto* list = std::get_if<std::vector<Ref>>(&a.value))
        for (Ref ref : *list) i += ref.id >= 0;
    }
    return call_.placed.inputs.at(i).layout;
  }
  // Devices whose pieces make up, with this one's, the dimension; in the order of those.
  Shape in_order(std::string_view operand, int64_t dim, int device) const {
    const Layout& of = layout(operand);
    std::vector<int> axes;
    for (size_t a = 0; a < of.axes.size(); ++a)
      if (of.axes[a].kind == AxisKind::split && of.axes[a].dim == dim)
        axes.push_back(static_cast<int>(a));
    Shape out = group_of(of, axes, device);
    std::stable_sort(out.begin(), out.end(), [&](int64_t a, int64_t b) {
      return range(operand, dim, static_cast<int>(a)).start <
             range(operand, dim, static_cast<int>(b)).start;
    });
    return out;
  }
  // Ranks that differ from this device along the wanted axes only; empty where there are none.
  template <class F>
  Shape ranks(const Layout& layout, F wanted) const {
    std::vector<int> axes;
    for (size_t a = 0; a < layout.axes.size(); ++a)
      if (layout.axes[a].size > 1 && wanted(layout.axes[a])) axes.push_back(static_cast<int>(a));
    return axes.empty() ? Shape{} : call_.exchange.group(layout, axes);
  }

  const PartCall& call_;
};

}  // namespace

std::optional<std::vector<Ref>> emit_part(const PartCall& call, const std::vector<NamedArg>& args,
                                          const CallSite& site, Tape& tape, Emitter& emitter) {
  const operators::Record* record = operators::find(call.node.op);
  if (record == nullptr || !record->part) return std::nullopt;
  const Here here(call);
  return tape.at(site, [&] {
    operators::Part part(here, tape, emitter, call.node.op, args);
    return record->part(part);
  });
}

}  // namespace nns::lower
