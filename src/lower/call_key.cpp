#include "lower/call_key.h"

#include "lower/uses.h"

namespace nns::lower {
namespace {

// Arguments that say where a draw lies in the whole tensor.
bool is_place(std::string_view name) {
  return name == "key" || name == "offset" || name == "full";
}

std::string type_text(const Program& program, int slot) {
  return slot < 0 ? "-" : to_string(program.slot(slot).type);
}

std::string text_of(const Program& program, const Arg& arg) {
  if (const auto* ref = std::get_if<Ref>(&arg)) return type_text(program, ref->id);
  if (const auto* list = std::get_if<std::vector<Ref>>(&arg)) {
    std::string text;
    for (Ref ref : *list) text += (text.empty() ? "" : ", ") + type_text(program, ref.id);
    return "{" + text + "}";
  }
  if (std::holds_alternative<std::monostate>(arg)) return "-";
  return graph::to_text(arg);
}

}  // namespace

std::string call_key(const Program& program, const Storage& storage, const Instr& instr) {
  if (instr.kind == InstrKind::accumulate)
    return "accumulate(" + type_text(program, reads(instr)[0]) + ")";
  std::string text;
  for (const NamedArg& arg : instr.args)
    if (!is_place(arg.name)) text += (text.empty() ? "" : ", ") + text_of(program, arg.value);
  text = instr.op + "(" + text + ")";
  const operators::Record* record = operators::find(instr.op);
  if (record != nullptr && is_view(record->view) && storage.allocates(instr)) text += " copy";
  if (instr.into >= 0) text += " into";
  return text;
}

}  // namespace nns::lower
