#include "lower/part.h"

#include <algorithm>

#include "annotate/assisted.h"
#include "base/error.h"
#include "lower/signature.h"

namespace nns::lower {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

class Part : public CallContext {
 public:
  Part(const PartCall& call, const std::vector<NamedArg>& args, const CallSite& site, Tape& tape,
       Emitter& emitter)
      : CallContext(emitter, call.node.op, args), call_(call), site_(site), tape_(tape) {}

  std::optional<std::vector<Ref>> emit() {
    const std::string_view base = op().substr(0, op().find('.'));
    if (base == "aten::linear") return linear();
    if (base == "aten::embedding") return embedding();
    if (base == "aten::batch_norm") return batch_norm();
    if (base == "aten::cross_entropy_loss")
      if (auto outs = classes_apart()) return outs;
    return mean();
  }

 private:
  // --- where the parts lie
  // -------------------------------------------------------------------------

  const OperandUse& use(std::string_view name) const {
    size_t i = 0;
    for (const NamedArg& a : args()) {
      if (a.name == name) break;
      if (const auto* one = std::get_if<Ref>(&a.value)) i += one->id >= 0;
      if (const auto* list = std::get_if<std::vector<Ref>>(&a.value))
        for (Ref ref : *list) i += ref.id >= 0;
    }
    return call_.placed.inputs.at(i);
  }
  const Shape& whole(std::string_view name) const {
    for (const NamedArg& a : call_.node.args)
      if (a.name == name) return call_.graph.value(std::get<Ref>(a.value)).type.shape;
    NNS_CHECK(false, "{} has no operand {}", op(), name);
  }
  template <class F>
  static std::vector<int> axes_where(const Layout& layout, F wanted) {
    std::vector<int> axes;
    for (size_t a = 0; a < layout.axes.size(); ++a)
      if (layout.axes[a].size > 1 && wanted(layout.axes[a])) axes.push_back(static_cast<int>(a));
    return axes;
  }
  // Axes that cut dimension `dim` of an operand.
  std::vector<int> cuts(std::string_view name, int64_t dim) const {
    return axes_where(use(name).layout,
                      [&](Axis a) { return a.kind == AxisKind::split && a.dim == dim; });
  }
  // The place of this device's part of a dimension of an operand: of(range) for its instructions,
  // and the length.
  template <class F>
  int64_t place(std::string_view name, int64_t dim, F of) const {
    return call_.exchange.peers().number([&](int device) { return of(range(name, dim, device)); });
  }
  int64_t length(std::string_view name, int64_t dim) const {
    return call_.exchange.peers().alike(
        [&](int device) { return range(name, dim, device).length(); });
  }
  Range range(std::string_view name, int64_t dim, int device) const {
    return use(name).layout.piece(whole(name), device).box[static_cast<size_t>(dim)];
  }
  // Ranks that hold the other addends of the first output.
  std::optional<Shape> addends() const {
    const Layout& out = call_.placed.outputs.at(0);
    const auto axes = axes_where(out, [](Axis a) { return a.kind == AxisKind::value; });
    if (axes.empty()) return std::nullopt;
    return call_.exchange.group(out, axes);
  }

  // --- calls
  // ---------------------------------------------------------------------------------------

  std::vector<Ref> apply(std::string_view name, std::vector<NamedArg> args) {
    return tape_.apply(name, std::move(args), site_);
  }
  // A call whose derivative is wanted.
  template <class... A>
  Ref grad(std::string_view name, A&&... values) {
    const auto names = argument_names(name);
    std::vector<NamedArg> args;
    size_t i = 0;
    (args.push_back({std::string(names.at(i++)), to_arg(std::forward<A>(values))}), ...);
    return apply(name, std::move(args)).front();
  }
  // The sum over ranks; its gradient is whole on each of them, or an addend (`partial`).
  Ref summed(Ref x, const Shape& ranks, bool partial) {
    const std::vector<TensorType> types{e.type(x)};
    return tape_
        .apply("comm::all_reduce",
               {{"self", x}, {"group", ranks}, {"grad_group", partial ? ranks : Shape{}}}, site_,
               &types)
        .front();
  }
  // The same of what has no derivative.
  Ref plain_sum(Ref x, const Shape& ranks) {
    return e.call_typed("comm::all_reduce", {{"self", x}, {"group", ranks}}, {e.type(x)}).front();
  }
  // Positions in this device's part of a dimension of an operand, and where they are none.
  std::pair<Ref, Ref> local_positions(Ref positions, std::string_view name, int64_t dim) {
    const Ref shifted =
        e("aten::add.Scalar", positions, place(name, dim, [](Range rows) { return -rows.start; }));
    const Ref outside = e("aten::logical_or", e("aten::lt.Scalar", shifted, int64_t{0}),
                          e("aten::ge.Scalar", shifted, length(name, dim)));
    return {e("aten::masked_fill.Scalar", shifted, outside, int64_t{0}), outside};
  }

  // --- means
  // ---------------------------------------------------------------------------------------

  // The addend of a mean: the local sum divided by what all devices count.
  std::optional<std::vector<Ref>> mean() {
    const auto ranks = addends();
    const std::string_view base = op().substr(0, op().find('.'));
    const bool average = base == "aten::mean";
    if (!ranks || (!average && (!annotate::is_loss(op()) || integer("reduction", kMean) != kMean)))
      return std::nullopt;
    std::vector<NamedArg> sum = args();
    for (NamedArg& a : sum)
      if (a.name == "reduction") a.value = int64_t{kSum};
    const bool some = average && std::any_of(sum.begin(), sum.end(),
                                             [](const NamedArg& a) { return a.name == "dim"; });
    const std::string name =
        average ? (some ? "aten::sum.dim_IntList" : "aten::sum") : std::string(op());
    const Ref total = apply(name, std::move(sum)).front();
    if (base == "aten::cross_entropy_loss" || base.starts_with("aten::nll_loss"))
      if (!is_floating(dtype("target")))
        return {{grad("aten::div.Tensor", total, plain_sum(labels(e.dtype(total)), *ranks))}};
    return {{grad("aten::div.Scalar", total, count())}};
  }

  // Elements of all devices that a mean counts.
  double count() {
    Shape shape = whole("self");
    if (op().starts_with("aten::mean")) {
      double n = 1;
      for (int64_t d : has("dim") ? dims("dim") : dims("")) n *= double(shape[size_t(d)]);
      return n;
    }
    if (op().starts_with("aten::cross_entropy_loss"))  // probabilities: samples
      return static_cast<double>(numel(shape)) / static_cast<double>(shape[shape.size() > 1]);
    if (const auto wide = annotate::broadcast(shape, whole("target"))) shape = *wide;
    return static_cast<double>(numel(shape));
  }

  // How much the local labels count: one each, or the weight of their class.
  Ref labels(DType dtype) {
    const Ref target = in("target");
    const Ref ignored = e("aten::eq.Scalar", target, integer("ignore_index", -100));
    if (!has("weight")) return e.cast(e("aten::sum", e("aten::logical_not", ignored)), dtype);
    const Shape shape = e.shape(target);
    const Ref safe = e("aten::masked_fill.Scalar", target, ignored, int64_t{0});
    const Ref weights =
        e.reshape(e("aten::index_select", in("weight"), 0, e.reshape(safe, {numel(shape)})), shape);
    return e("aten::sum", e("aten::masked_fill.Scalar", weights, ignored, 0.0));
  }

  // --- products
  // ----------------------------------------------------------------------------------------

  // Of a product that is a sum over devices, the first takes the bias.
  std::optional<std::vector<Ref>> linear() {
    const auto ranks = addends();
    if (!ranks || !has("bias")) return std::nullopt;
    std::vector<NamedArg> local = args();
    for (NamedArg& a : local)
      if (a.name == "bias") {
        const std::vector<TensorType> types{type("bias")};
        a.value = tape_
                      .apply("comm::value_chunk", {{"self", in("bias")}, {"group", *ranks}}, site_,
                             &types)
                      .front();
      }
    return apply(op(), std::move(local));
  }

  // --- rows of a table
  // -----------------------------------------------------------------------------

  // Rows that this device does not hold are zeros: an addend.
  std::optional<std::vector<Ref>> embedding() {
    if (cuts("weight", 0).empty()) return std::nullopt;
    const auto [positions, outside] = local_positions(in("indices"), "weight", 0);
    std::vector<NamedArg> local = args();
    for (NamedArg& a : local) {
      if (a.name == "indices") a.value = positions;
      if (a.name == "padding_idx")
        if (auto* padding = std::get_if<int64_t>(&a.value); padding && *padding >= 0)
          *padding = place("weight", 0, [row = *padding](Range rows) {
            return row >= rows.start && row < rows.stop ? row - rows.start : -1;
          });
    }
    const Ref found = apply(op(), std::move(local)).front();
    return {{grad("aten::masked_fill.Scalar", found, e("aten::unsqueeze", outside, -1), 0.0)}};
  }

  // --- classes
  // -------------------------------------------------------------------------------------

  // Cross entropy whose classes lie on several devices: log Σ exp by the greatest and the sum over
  // all, and the score of the label from the device that has it. All devices get the whole loss.
  std::optional<std::vector<Ref>> classes_apart() {
    const int64_t dim = rank("self") == 1 ? 0 : 1;
    const auto axes = cuts("self", dim);
    if (axes.empty()) return std::nullopt;
    const Shape ranks = call_.exchange.group(use("self").layout, axes);
    const Ref scores = in("self"), target = in("target");
    const Ref top =
        e.call("aten::amax", {{"self", scores}, {"dim", Shape{dim}}, {"keepdim", true}}).front();
    const Ref most =
        e.call_typed("comm::all_reduce", {{"self", top}, {"group", ranks}, {"reduce", "max"}},
                     {e.type(top)})
            .front();
    const Ref shifted = grad("aten::sub.Tensor", scores, most);
    const auto sum_of = [&](Ref x) {
      return summed(grad("aten::sum.dim_IntList", x, Shape{dim}, true), ranks, false);
    };
    const Ref log_sum = grad("aten::log", sum_of(grad("aten::exp", shifted)));
    const auto [positions, outside] =
        local_positions(e("aten::unsqueeze", target, dim), "self", dim);
    Ref own = grad("aten::gather", shifted, dim, positions, false);
    own = summed(grad("aten::masked_fill.Scalar", own, outside, 0.0), ranks, false);
    Ref loss = grad("aten::sub.Tensor", log_sum, own);
    if (const double smoothing = real("label_smoothing", 0); smoothing > 0) {
      const auto classes = static_cast<double>(whole("self")[static_cast<size_t>(dim)]);
      const Ref even =
          grad("aten::sub.Tensor", grad("aten::mul.Scalar", log_sum, classes), sum_of(shifted));
      loss = grad("aten::add.Tensor", grad("aten::mul.Scalar", loss, 1 - smoothing),
                  grad("aten::mul.Scalar", even, smoothing / classes));
    }
    const Ref ignored = e("aten::eq.Scalar", target, integer("ignore_index", -100));
    loss = grad("aten::masked_fill.Scalar", grad("aten::reshape", loss, e.shape(target)), ignored,
                0.0);
    const int64_t reduction = integer("reduction", kMean);
    if (reduction == kNone) return {{loss}};
    loss = grad("aten::sum", loss);
    if (reduction == kSum) return {{loss}};
    const Ref counted = labels(e.dtype(loss));
    const auto shared = addends();
    return {{grad("aten::div.Tensor", loss, shared ? plain_sum(counted, *shared) : counted)}};
  }

  // --- statistics
  // ----------------------------------------------------------------------------------

  // Batch norm in training whose batch (or positions) lie on several devices.
  std::optional<std::vector<Ref>> batch_norm() {
    const Layout& layout = use("input").layout;
    const auto axes =
        axes_where(layout, [](Axis a) { return a.kind == AxisKind::split && a.dim != 1; });
    if (axes.empty() || !boolean("training")) return std::nullopt;
    const Shape ranks = call_.exchange.group(layout, axes), shape = shape_of("input");
    Shape over, column(shape.size(), 1);
    for (size_t d = 0; d < shape.size(); ++d)
      if (d != 1) over.push_back(static_cast<int64_t>(d));
    column[1] = shape[1];
    const double n =
        static_cast<double>(numel(whole("input"))) / static_cast<double>(whole("input")[1]);
    const auto average = [&](Ref x) {
      return grad("aten::div.Scalar",
                  summed(grad("aten::sum.dim_IntList", x, over, true), ranks, true), n);
    };
    const Ref mean = average(in("input"));
    const Ref centred = grad("aten::sub.Tensor", in("input"), mean);
    const Ref variance = average(grad("aten::mul.Tensor", centred, centred));
    const Ref scale = grad("aten::rsqrt", grad("aten::add.Scalar", variance, real("eps", 1e-5)));
    Ref out = grad("aten::mul.Tensor", centred, scale);
    if (has("weight"))
      out = grad("aten::mul.Tensor", out, grad("aten::reshape", in("weight"), column));
    if (has("bias")) out = grad("aten::add.Tensor", out, grad("aten::reshape", in("bias"), column));
    std::vector<Ref> outs{out};
    if (!has("running_mean")) return outs;
    const double momentum = real("momentum", 0.1);
    const auto moved = [&](const char* name, Ref now, double factor) {
      now = e.mul(e.reshape(now, {shape[1]}), factor * momentum);
      return e.add(e.mul(in(name), 1 - momentum), now);
    };
    outs.push_back(moved("running_mean", mean, 1));
    outs.push_back(moved("running_var", variance, n / (n - 1)));
    return outs;
  }
  Shape shape_of(std::string_view name) const { return shape(name); }

  const PartCall& call_;
  const CallSite& site_;
  Tape& tape_;
};

}  // namespace

std::optional<std::vector<Ref>> emit_part(const PartCall& call, const std::vector<NamedArg>& args,
                                          const CallSite& site, Tape& tape, Emitter& emitter) {
  return Part(call, args, site, tape, emitter).emit();
}

}  // namespace nns::lower
