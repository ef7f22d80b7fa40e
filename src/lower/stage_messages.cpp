// Messages between stages: values on the way forward, their gradients on the way back.
#include <algorithm>

#include "lower/stage.h"

namespace nns::lower {
namespace {

// Tags of a micro-batch start at ctx.tag.
const graph::Symbol kFirstTag{"$tag"};
// Whether the micro-batch counts for nothing.
const graph::Symbol kEmpty{"$empty"};

}  // namespace

void StageLowering::emit_send(Ref x, const Layout& from, const Layout& to, const Shape& shape,
                              int64_t tag, bool gradient) {
  const auto moves = moves_between(from, to, shape);
  if (!peers_.alike([&](int device) {
        return std::any_of(moves.begin(), moves.end(),
                           [&](const Move& m) { return m.source == device; });
      }))
    return unsent_.push_back(x.id);
  std::vector<NamedArg> args{
      {"self", x}, {"moves", exchange_.sends(from, to, shape)}, {"tag", tag}, {"first", kFirstTag}};
  if (gradient) args.push_back({"empty", kEmpty});
  e_.call_typed("comm::send", std::move(args), {});
}

Ref StageLowering::emit_receive(const TensorType& type, Shape moves, int64_t tag,
                                const std::string& name) {
  const Ref x = e_.call_typed("comm::receive",
                              {{"shape", type.shape},
                               {"moves", std::move(moves)},
                               {"tag", tag},
                               {"first", kFirstTag},
                               {"dtype", type.dtype}},
                              {type})
                    .front();
  out_.program.slots.back().name = name;
  return x;
}

// What earlier stages made.
void StageLowering::receive_values(std::vector<Instr>& instrs) {
  e_.write_to(instrs);
  for (int id : layouts_.arrivals(where_.stage())) {
    exchange_.count_message();
    const auto& value = graph_.value({id});
    const Layout from = layouts_.departure(id), to = layouts_.arrival(id, where_.stage());
    const auto& maker = graph_.nodes[static_cast<size_t>(value.producer)];
    e_.set_origin({maker.id, maker.module, maker.loc});
    const Ref slot = emit_receive({peers_.local_shape(to, value.type.shape), value.type.dtype},
                                  exchange_.receives(from, to, value.type.shape),
                                  layouts_.tag(id, where_.stage(), false), "received");
    hold(id, {to, {}}, slot, false);
    if (graph_.training && value.requires_grad) {
      tape_.require_grad(slot);
      arrived_.push_back({id, slot});
    }
  }
}

// What later stages read.
void StageLowering::send_value(int id) {
  const auto stages = layouts_.other_stages(id);
  if (stages.empty()) return;
  const auto& value = graph_.value({id});
  const Layout from = layouts_.departure(id);
  const Ref slot = slot_for({id}, {from, std::vector<bool>(from.axes.size())});
  for (int stage : stages) {
    exchange_.count_message();
    emit_send(slot, from, layouts_.arrival(id, stage), value.type.shape,
              layouts_.tag(id, stage, false));
  }
  if (graph_.training && value.requires_grad) sent_.push_back({id, slot});
}

// Gradients of what later stages read, each the seed of its value.
void StageLowering::receive_gradients(std::vector<std::pair<Ref, Ref>>& seeds) {
  for (const auto& [id, slot] : sent_) {
    const Shape& shape = graph_.value({id}).type.shape;
    const Layout to = layouts_.departure(id);
    const auto& maker = graph_.nodes[static_cast<size_t>(graph_.value({id}).producer)];
    e_.set_origin({maker.id, maker.module, maker.loc});
    for (int stage : layouts_.other_stages(id))
      seeds.emplace_back(
          slot,
          emit_receive(e_.type(slot), exchange_.receives(layouts_.arrival(id, stage), to, shape),
                       layouts_.tag(id, stage, true), "d_received"));
  }
}

// Gradients of what earlier stages made; zeros where no path leads to the loss.
void StageLowering::send_gradients(const std::vector<Ref>& gradients) {
  for (const auto& [id, slot] : arrived_) {
    const Shape& shape = graph_.value({id}).type.shape;
    const auto& maker = graph_.nodes[static_cast<size_t>(graph_.value({id}).producer)];
    e_.set_origin({maker.id, maker.module, maker.loc});
    Ref gradient = static_cast<size_t>(slot.id) < gradients.size()
                       ? gradients[static_cast<size_t>(slot.id)]
                       : Ref{};
    if (gradient.id < 0) gradient = e_.zeros(slot, e_.type(slot));
    emit_send(gradient, layouts_.arrival(id, where_.stage()), layouts_.departure(id), shape,
              layouts_.tag(id, where_.stage(), true), true);
  }
}

}  // namespace nns::lower
