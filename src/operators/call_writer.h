// CallWriter: what a derivative writes its calls through. It stands for the code under
// construction, whose tensors are refs with types; `lower` implements it for a segment of a
// program. Rules know neither partitions nor devices, so that one rule serves a whole operator and
// its shard. Shapes of what is written come from the records.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "operators/call_view.h"

namespace nns::operators {

// Arguments that rules write: numbers, texts, shapes and tensors become Arg.
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

// Arguments given in the order of the operator's signature, by name; trailing ones may be missing.
std::vector<NamedArg> named_args(std::string_view op, std::vector<Arg> values);

class CallWriter {
 public:
  virtual ~CallWriter() = default;

  // Type of a tensor; the reference holds until the next call is written.
  virtual const TensorType& type_of(int id) const = 0;
  // Writes a call with outputs of the given types.
  virtual std::vector<Ref> call_typed(std::string_view op, std::vector<NamedArg> args,
                                      const std::vector<TensorType>& types) = 0;
  virtual const std::string& device() const = 0;  // type of device: "cpu", "cuda"
  virtual const std::string& module() const = 0;  // path of the module whose call is in work
  // Keeps a choice worth a line in the log.
  virtual void note(std::string text) = 0;

  // Writes a call whose arguments are given in the order of the operator's signature; trailing ones
  // may be left out. Returns its outputs (a list result is flattened).
  template <class... A>
  std::vector<Ref> emit(std::string_view op, A&&... args) {
    return call(op, named_args(op, {to_arg(std::forward<A>(args))...}));
  }
  // The same with the outputs' types said.
  template <class... A>
  std::vector<Ref> emit_typed(const std::vector<TensorType>& types, std::string_view op,
                              A&&... args) {
    return call_typed(op, named_args(op, {to_arg(std::forward<A>(args))...}), types);
  }
  // The same for one output.
  template <class... A>
  Ref operator()(std::string_view op, A&&... args) {
    return emit(op, std::forward<A>(args)...).front();
  }
  // Writes a call with named arguments.
  std::vector<Ref> call(std::string_view op, std::vector<NamedArg> args);

  // By value: writing a call moves what `type_of` refers to.
  TensorType type(Ref ref) const { return type_of(ref.id); }
  Shape shape(Ref ref) const { return type(ref).shape; }
  DType dtype(Ref ref) const { return type_of(ref.id).dtype; }

  // --- shorthands that write nothing when there is nothing to do --------------------------------
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
};

}  // namespace nns::operators
