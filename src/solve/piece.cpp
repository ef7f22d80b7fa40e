#include "solve/piece.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "lower/part.h"
#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::solve {

using lower::Axis;
using lower::AxisKind;
using lower::Instr;
using lower::Layout;
using lower::OperandUse;
using lower::Program;
using lower::Ref;
using lower::Seconds;
using lower::Segment;
using lower::SegmentKind;
using lower::SlotRole;

Layout layout_of(Code code, int devices) {
  std::vector<int> all(static_cast<size_t>(devices));
  std::iota(all.begin(), all.end(), 0);
  Axis axis{devices, AxisKind::replicate, 0};
  if (code == kAddend) axis.kind = AxisKind::value;
  if (code >= kCut) axis = {devices, AxisKind::split, code - kCut};
  return {std::move(all), {axis}};
}

OperandUse use_of(Code code, int devices) {
  return {layout_of(code, devices), {code == kPartial}};
}

Code code_of(const Layout& layout, bool partial) {
  if (layout.axes.empty()) return kWhole;  // one device
  const Axis& axis = layout.axes[0];
  if (axis.kind == AxisKind::value) return kAddend;
  if (axis.kind == AxisKind::split) return static_cast<Code>(kCut + axis.dim);
  return partial ? kPartial : kWhole;
}

double sum_seconds(const TensorType& local, const cost::Hardware& on) {
  const int64_t elements = numel(local.shape);
  return cost::roofline(static_cast<double>(elements), 3 * bytes_of(local), elements, local.dtype,
                        on);
}

namespace {

// A program of one forward and one backward segment in the making.
class Bench {
 public:
  Bench(const Target& target, bool training, int device = 0)
      : target_(target),
        device_(device),
        peers_({device}, false),
        emitter_(program_, target.device, notes_),
        tape_(emitter_, training),
        exchange_(tape_, emitter_, peers_) {
    program_.rank = device;
    program_.world = target.devices;
    program_.segments.resize(2);
    program_.segments[0].kind = SegmentKind::forward;
    program_.segments[1].kind = SegmentKind::backward;
    emitter_.write_to(program_.segments[0].instrs);
  }

  Ref operand(const TensorType& type, bool requires_grad) {
    const Ref slot = emitter_.new_slot(type, SlotRole::activation);
    if (requires_grad) tape_.require_grad(slot);
    operands_.push_back(slot);
    gradients_.push_back(0);
    return slot;
  }

  // Writes the backward of results that get a gradient.
  void reverse(const std::vector<Ref>& results) {
    emitter_.write_to(program_.segments[1].instrs);
    std::vector<std::pair<Ref, Ref>> seeds;
    for (Ref result : results) {
      if (!tape_.requires_grad(result)) continue;
      const auto same = std::find(operands_.begin(), operands_.end(), result);
      if (same != operands_.end())  // its gradient is the operand's
        ++gradients_[static_cast<size_t>(same - operands_.begin())];
      else
        seeds.emplace_back(result,
                           emitter_.new_slot(emitter_.type(result), SlotRole::input, "seed"));
    }
    auto& outputs = program_.segments[1].outputs;
    tape_.reverse(seeds, {[&](Ref slot) { return at(slot) < operands_.size(); },
                          [&](Ref slot, Ref gradient) {
                            ++gradients_[at(slot)];
                            if (at(slot) == 0) gradient_of_first_ = gradient.id;
                            outputs.push_back(gradient.id);
                          }});
  }

  // Takes out what the passes of a whole program would.
  void finish(const std::vector<Ref>& results) {
    for (Ref result : results) program_.segments[0].outputs.push_back(result.id);
    lower::fold_views(program_);
    lower::remove_dead_calls(program_, {});
  }

  Seconds seconds(size_t segment, const lower::Storage& storage) const {
    return seconds(program_, segment, storage);
  }

  // What lowering spares of a segment of this program and a sum in it, by putting them together.
  double spared(size_t segment, bool first, int a, int b, int sum) const {
    Program p = program_;
    Instr add;
    add.op = "aten::add.Tensor";
    add.args = {{"self", Ref{a}}, {"other", Ref{b}}, {"alpha", int64_t{1}}};
    add.outs = {sum};
    add.module = p.segments[0].instrs.front().module;
    auto& instrs = p.segments[segment].instrs;
    instrs.insert(first ? instrs.begin() : instrs.end(), add);
    std::erase(p.segments[segment].outputs, a);
    p.segments[segment].outputs.push_back(sum);
    const double apart = seconds(p, segment, lower::Storage(p)).all();
    lower::fuse_sums(p, target_.device);
    return apart - seconds(p, segment, lower::Storage(p)).all();
  }

  // Where a call of the forward has a form with a sum of its first operand, or in the backward one
  // whose gradient takes another in.
  void find_spared(CallPiece& piece) {
    if (operands_.empty() || program_.segments[0].instrs.empty()) return;
    const Ref x = operands_[0];
    const TensorType type = emitter_.type(x);
    for (size_t s = 0; s < 2; ++s)
      for (const Instr& instr : program_.segments[s].instrs) {
        const operators::Record* record = operators::find(instr.op);
        if (record == nullptr || instr.kind != lower::InstrKind::call) continue;
        const bool sum = s == 0 && !record->of_sum.empty() && lower::reads(instr).at(0) == x.id;
        const bool join = s == 1 && !record->addend.empty() && gradients_[0] == 1 &&
                          instr.outs.at(0) == gradient_of_first_;
        if (!sum && !join) continue;
        const Ref a = emitter_.new_slot(type, SlotRole::activation);
        const Ref b = emitter_.new_slot(type, SlotRole::activation);
        if (sum)
          piece.spared_sum = spared(0, true, a.id, b.id, x.id);
        else
          piece.spared_gradient = spared(1, false, gradient_of_first_, a.id, b.id);
        break;
      }
  }

  Seconds seconds(const Program& program, size_t segment, const lower::Storage& storage) const {
    Seconds sum;
    const Segment& of = program.segments[segment];
    for (const Instr& instr : of.instrs)
      sum += lower::seconds_of(program, storage, of.kind, instr, *target_.on);
    return sum;
  }

  // Position among the operands; their number where it is none.
  size_t at(Ref slot) const {
    return static_cast<size_t>(std::find(operands_.begin(), operands_.end(), slot) -
                               operands_.begin());
  }

  // Whether devices pass parts on in a ring: then what they do differs, as under a causal mask.
  bool rotates() const {
    return std::any_of(program_.segments.begin(), program_.segments.end(), [](const Segment& of) {
      return std::any_of(of.instrs.begin(), of.instrs.end(), [](const Instr& instr) {
        return lower::communication_of(instr) == operators::Communication::rotate;
      });
    });
  }

  const Target& target_;
  const int device_;
  Program program_;
  std::vector<std::string> notes_;
  lower::Peers peers_;
  lower::Emitter emitter_;
  lower::Tape tape_;
  lower::Exchange exchange_;
  std::vector<Ref> operands_;
  std::vector<int> gradients_;
  int gradient_of_first_ = -1;  // slot
};

TensorType local(const TensorType& whole, const Layout& layout, int device = 0) {
  return {layout.local_shape(whole.shape, device), whole.dtype};
}

// The call on local operands, as StageLowering makes it, and its results.
std::vector<Ref> call(Bench& bench, const graph::Graph& graph, const graph::Node& node,
                      const Candidate& candidate, const Asked& asked) {
  lower::CallSite site{node.ordinal, node.context.grad_enabled, -1, {}, {}};
  std::vector<graph::NamedArg> args =
      std::move(lower::args_on(graph, node, candidate.placed, bench.device_)[0]);
  size_t i = 0;
  lower::for_each_ref(args, [&](Ref& ref) {
    const TensorType& whole = graph.value(ref).type;
    const Layout& layout = candidate.placed.inputs[i].layout;
    const TensorType type = local(whole, layout, bench.device_);
    if (i == 0 && type.shape != whole.shape) {
      site.full = whole.shape;
      for (const lower::Range& range : layout.piece(whole.shape, bench.device_).box)
        site.offset.push_back(range.start);
    }
    ref = bench.operand(type, asked.needs[i]);
    ++i;
  });
  std::vector<TensorType> types;
  for (size_t k = 0; k < node.outputs.size(); ++k)
    types.push_back(
        local(graph.value({node.outputs[k]}).type, candidate.placed.outputs[k], bench.device_));
  bench.emitter_.set_origin({node.id, node.module, node.loc});
  auto part = lower::emit_part({graph, node, candidate.placed, bench.exchange_}, args, site,
                               bench.tape_, bench.emitter_);
  return part ? std::move(*part) : bench.tape_.apply(node.op, std::move(args), site, &types);
}

// What a device does; `ring`: whether it differs from what others do.
CallPiece piece_of(const graph::Graph& graph, const graph::Node& node, const Candidate& candidate,
                   const Asked& asked, const Target& target, int device, bool& ring) {
  Bench bench(target, graph.training, device);
  const std::vector<Ref> results = call(bench, graph, node, candidate, asked);
  CallPiece piece;
  for (Ref result : results) piece.results.push_back({0, true, bench.tape_.requires_grad(result)});
  std::vector<Ref> used, seeded;
  for (size_t k = 0; k < results.size(); ++k) {
    if (asked.used[k]) used.push_back(results[k]);
    if (asked.grads[k]) seeded.push_back(results[k]);
  }
  bench.reverse(seeded);
  bench.finish(used);
  ring = bench.rotates();
  const Program& program = bench.program_;
  std::vector<int> strided;
  for (size_t i = 0; i < bench.operands_.size(); ++i)
    if (asked.strided[i]) strided.push_back(bench.operands_[i].id);
  const lower::Storage storage(program, strided);
  piece.forward = bench.seconds(0, storage);
  piece.backward = bench.seconds(1, storage);
  piece.gradients = bench.gradients_;
  piece.reads.assign(bench.operands_.size(), false);

  std::set<int> made{};  // by the forward, or operands
  for (Ref operand : bench.operands_) made.insert(operand.id);
  for (const Instr& instr : program.segments[0].instrs)
    made.insert(instr.outs.begin(), instr.outs.end());
  std::set<int> kept;  // roots
  for (const Instr& instr : program.segments[1].instrs)
    for (int slot : lower::reads(instr))
      if (made.contains(slot)) kept.insert(storage.root(slot));
  std::vector<int> roots;
  size_t next = 0;
  for (size_t k = 0; k < results.size(); ++k) {
    if (!asked.used[k]) continue;
    const int slot = program.segments[0].outputs.at(next++);  // after folding
    const int root = storage.root(slot);
    CallPiece::Result& result = piece.results[k];
    result.contiguous = storage.is_contiguous(slot);
    result.root = bench.at({root});
    if (result.root < bench.operands_.size()) continue;
    const auto known = std::find(roots.begin(), roots.end(), root);
    result.root = bench.operands_.size() + static_cast<size_t>(known - roots.begin());
    if (known != roots.end()) continue;
    roots.push_back(root);
    piece.roots.push_back({storage.bytes(root), kept.contains(root)});
  }
  for (int root : kept) {
    const size_t operand = bench.at({root});
    if (operand < piece.reads.size())
      piece.reads[operand] = true;
    else if (std::find(roots.begin(), roots.end(), root) == roots.end())
      piece.kept += storage.bytes(root);
  }
  const std::vector<int> inputs = graph::inputs_of(node);
  // A call may write its results where its operands were, and the gradients that it is given may be
  // one number.
  const auto top_of = [&](size_t segment) {
    const auto bytes_of_all = [&](const std::vector<int>& slots) {
      std::set<int> roots;
      int64_t bytes = 0;
      for (int slot : slots)
        if (const int root = slot < 0 ? -1 : storage.root(slot);
            root >= 0 && program.slot(root).role != SlotRole::input && !kept.contains(root) &&
            bench.at({root}) == bench.operands_.size() && roots.insert(root).second)
          bytes += storage.bytes(root);
      return bytes;
    };
    // What is kept may be gone once nothing here reads it any more; weights and inputs stay.
    const auto& instrs = program.segments[segment].instrs;
    std::map<int, size_t> last;  // by root
    for (size_t i = 0; i < instrs.size() && segment == 1; ++i)
      for (int slot : lower::reads(instrs[i])) last[storage.root(slot)] = i;
    std::erase_if(last, [&](const auto& entry) {
      const size_t operand = bench.at({entry.first});
      return !kept.contains(entry.first) ||
             (operand < inputs.size() && graph.value({inputs[operand]}).producer < 0);
    });
    int64_t most = 0;
    for (size_t i = 0; i < instrs.size(); ++i) {
      int64_t gone = 0;
      for (const auto& [root, end] : last)
        if (end < i) gone += storage.bytes(root);
      most = std::max(most, bytes_of_all(lower::reads(instrs[i])) - gone);
      if (storage.allocates(instrs[i])) most = std::max(most, bytes_of_all(instrs[i].outs) - gone);
    }
    return most;
  };
  piece.forward_top = top_of(0);
  piece.backward_top = top_of(1);
  bench.find_spared(piece);
  return piece;
}

}  // namespace

CallPiece make_piece(const graph::Graph& graph, const graph::Node& node, const Candidate& candidate,
                     const Asked& asked, const Target& target) {
  bool ring = false;
  CallPiece longest = piece_of(graph, node, candidate, asked, target, 0, ring);
  for (int device = 1; ring && device < target.devices; ++device) {
    CallPiece piece = piece_of(graph, node, candidate, asked, target, device, ring);
    if (piece.forward.all() + piece.backward.all() > longest.forward.all() + longest.backward.all())
      longest = std::move(piece);
  }
  return longest;
}

ConversionPiece make_conversion(const TensorType& whole, Code from, Code to, bool requires_grad,
                                const Target& target) {
  Bench bench(target, true);
  const Layout source = layout_of(from, target.devices);
  const Ref x = bench.operand(local(whole, source), requires_grad);
  const Ref made = bench.exchange_.convert(x, source, use_of(to, target.devices), whole);
  ConversionPiece piece;
  piece.none = made == x;
  if (piece.none) return piece;
  if (requires_grad) bench.reverse({made});
  bench.finish({made});
  const lower::Storage storage(bench.program_);
  piece.forward = bench.seconds(0, storage);
  piece.backward = bench.seconds(1, storage);
  piece.same = requires_grad && bench.program_.segments[1].instrs.empty();
  const int root = storage.root(bench.program_.segments[0].outputs[0]);
  piece.view = root == x.id;
  piece.bytes = storage.bytes(root);
  return piece;
}

}  // namespace nns::solve
