// Emitter: writes calls of operators on local tensors (slots) into a segment. Derivative rules and
// the lowering itself speak to it; neither knows of partitions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lower/program.h"
#include "operators/call_writer.h"

namespace nns::lower {

using operators::Ref;
using operators::to_arg;

// What an instruction comes from: shown in generated code and in errors.
struct Origin {
  int node = -1;
  std::string module;
  SourceLoc loc;
};

class Emitter : public operators::CallWriter {
 public:
  // `notes` collects choices worth a line in the log, each once.
  Emitter(Program& program, std::string device, std::vector<std::string>& notes)
      : program_(program), device_(std::move(device)), notes_(notes) {}

  // Where instructions go from now on.
  void write_to(std::vector<Instr>& instrs) { out_ = &instrs; }
  void set_origin(Origin origin) { origin_ = std::move(origin); }
  const Origin& origin() const { return origin_; }
  Program& program() { return program_; }

  const TensorType& type_of(int id) const override { return program_.slot(id).type; }
  std::vector<Ref> call_typed(std::string_view op, std::vector<NamedArg> args,
                              const std::vector<TensorType>& types) override;
  const std::string& device() const override { return device_; }
  const std::string& module() const override { return origin_.module; }
  void note(std::string text) override;

  Ref new_slot(TensorType type, SlotRole role, std::string name = {});

 private:
  Program& program_;
  std::string device_;
  std::vector<std::string>& notes_;
  std::vector<Instr>* out_ = nullptr;
  Origin origin_;
};

// Calls `visit(Ref&)` for every tensor operand of the arguments, in order (nil ones left out).
template <class F>
void for_each_ref(std::vector<NamedArg>& args, F visit) {
  for (NamedArg& a : args) {
    if (auto* one = std::get_if<Ref>(&a.value)) {
      if (one->id >= 0) visit(*one);
    } else if (auto* list = std::get_if<std::vector<Ref>>(&a.value)) {
      for (Ref& ref : *list)
        if (ref.id >= 0) visit(ref);
    }
  }
}
template <class F>
void for_each_ref(const std::vector<NamedArg>& args, F visit) {
  for_each_ref(const_cast<std::vector<NamedArg>&>(args), [&](Ref& ref) { visit(Ref(ref)); });
}

}  // namespace nns::lower
