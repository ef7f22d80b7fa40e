// Emission of calls into a segment.
#include "lower/emitter.h"

#include <algorithm>

#include "base/error.h"

namespace nns::lower {

void Emitter::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end())
    notes_.push_back(std::move(text));
}

Ref Emitter::new_slot(TensorType type, SlotRole role, std::string name) {
  const int id = static_cast<int>(program_.slots.size());
  program_.slots.push_back({id, std::move(type), role, std::move(name), {}, {}});
  return {id};
}

std::vector<Ref> Emitter::call_typed(std::string_view op, std::vector<NamedArg> args,
                                     const std::vector<TensorType>& types) {
  NNS_CHECK(out_ != nullptr, "emitter without a segment");
  Instr instr;
  instr.op = op;
  instr.args = std::move(args);
  instr.node = origin_.node;
  instr.module = origin_.module;
  instr.loc = origin_.loc;
  std::vector<Ref> outs;
  const auto mask = std::find_if(instr.args.begin(), instr.args.end(),
                                 [](const NamedArg& a) { return a.name == "output_mask"; });
  for (size_t i = 0; i < types.size(); ++i) {
    // An output that is masked off is not a tensor at all.
    const bool made = mask == instr.args.end() || std::get<std::vector<bool>>(mask->value).at(i);
    outs.push_back(made ? new_slot(types[i], SlotRole::activation) : Ref{});
    instr.outs.push_back(outs.back().id);
  }
  out_->push_back(std::move(instr));
  return outs;
}

}  // namespace nns::lower
