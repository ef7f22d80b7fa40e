// Emitter: writes calls of operators on local tensors (slots) into a segment. Derivative rules and
// the lowering itself speak to it; neither knows of partitions. Shapes of what is emitted come from
// the operator table.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

using Ref = graph::ValueRef;  // a slot; id -1: no tensor

// Arguments that rules write: numbers, texts, shapes and slots become Arg.
inline Arg to_arg(Arg value) {
  return value;
}
inline Arg to_arg(Ref ref) {
  return ref.id < 0 ? Arg() : Arg(ref);
}
inline Arg to_arg(std::nullptr_t) {
  return {};
}
inline Arg to_arg(bool value) {
  return value;
}
inline Arg to_arg(int value) {
  return static_cast<int64_t>(value);
}
inline Arg to_arg(int64_t value) {
  return value;
}
inline Arg to_arg(double value) {
  return value;
}
inline Arg to_arg(const char* value) {
  return std::string(value);
}
inline Arg to_arg(std::string value) {
  return value;
}
inline Arg to_arg(Shape value) {
  return value;
}
inline Arg to_arg(std::vector<Ref> value) {
  return value;
}
inline Arg to_arg(std::vector<bool> value) {
  return value;
}
inline Arg to_arg(DType value) {
  return value;
}
inline Arg to_arg(graph::Symbol value) {
  return value;
}

// What an instruction comes from: shown in generated code and in errors.
struct Origin {
  int node = -1;
  std::string module;
  SourceLoc loc;
};

class Emitter {
 public:
  // `notes` collects choices worth a line in the log, each once.
  Emitter(Program& program, std::string device, std::vector<std::string>& notes)
      : program_(program), device_(std::move(device)), notes_(notes) {}

  // Where instructions go from now on.
  void write_to(std::vector<Instr>& instrs) { out_ = &instrs; }
  void set_origin(Origin origin) { origin_ = std::move(origin); }
  const Origin& origin() const { return origin_; }
  Program& program() { return program_; }
  const std::string& device() const { return device_; }  // type of device: "cpu", "cuda"
  void note(std::string text);

  // Emits a call whose arguments are given in the order of the operator's signature (signature.h);
  // trailing ones may be left out. Returns its outputs (a list result is flattened).
  template <class... A>
  std::vector<Ref> emit(std::string_view op, A&&... args) {
    return call(op, bind(op, {to_arg(std::forward<A>(args))...}));
  }
  // The same with the outputs' types said.
  template <class... A>
  std::vector<Ref> emit_typed(const std::vector<TensorType>& types, std::string_view op,
                              A&&... args) {
    return call_typed(op, bind(op, {to_arg(std::forward<A>(args))...}), types);
  }
  // The same for one output.
  template <class... A>
  Ref operator()(std::string_view op, A&&... args) {
    return emit(op, std::forward<A>(args)...).front();
  }
  // Emits a call with named arguments.
  std::vector<Ref> call(std::string_view op, std::vector<NamedArg> args);
  // Emits an instruction that is not an operator of the table, with outputs of the given types.
  std::vector<Ref> call_typed(std::string_view op, std::vector<NamedArg> args,
                              const std::vector<TensorType>& types);

  Ref new_slot(TensorType type, SlotRole role, std::string name = {});
  // By value: emitting moves the list of slots.
  TensorType type(Ref ref) const { return program_.slot(ref.id).type; }
  Shape shape(Ref ref) const { return type(ref).shape; }
  DType dtype(Ref ref) const { return program_.slot(ref.id).type.dtype; }

  // --- shorthands that emit nothing when there is nothing to do ---------------------------------
  Ref reshape(Ref x, const Shape& shape);
  Ref expand(Ref x, const Shape& shape);
  Ref cast(Ref x, DType dtype);
  // Sums over the dimensions that broadcasting `shape` to x's shape had made.
  Ref sum_to(Ref x, const Shape& shape);
  Ref transpose(Ref x, int64_t a, int64_t b);
  Ref t(Ref x) { return transpose(x, 0, 1); }
  Ref conj(Ref x);
  Ref mul(Ref a, Ref b) { return (*this)("aten::mul.Tensor", a, b); }
  Ref mul(Ref a, double factor);
  Ref add(Ref a, Ref b) { return (*this)("aten::add.Tensor", a, b); }
  Ref sub(Ref a, Ref b) { return (*this)("aten::sub.Tensor", a, b); }
  Ref div(Ref a, Ref b) { return (*this)("aten::div.Tensor", a, b); }
  Ref add(Ref a, double number);
  Ref neg(Ref a) { return (*this)("aten::neg", a); }
  // Filled tensors on the device of `like`.
  Ref zeros(Ref like, const TensorType& type) { return full(like, type, 0.0); }
  Ref full(Ref like, const TensorType& type, double value);

 private:
  static std::vector<NamedArg> bind(std::string_view op, std::initializer_list<Arg> args);

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
