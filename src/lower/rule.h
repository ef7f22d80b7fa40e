// Derivative rules. A rule works on one local call (operator, typed arguments, which of them need
// gradients) and writes calls through an Emitter; it knows neither partitions nor devices, so that
// one table serves whole operators and their shards.
//
// A row has one of these shapes:
//   backward only        the forward call stays as it is
//   forward + backward   the forward call is rewritten (layer_norm → native_layer_norm), and what
//                        the derivative needs is kept
//   expand               the call becomes other calls that have rules of their own
//   constant             outputs have no derivative (comparisons, argmax)
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lower/emitter.h"

namespace nns::lower {

class Tape;

// What rules share: typed access to the call's arguments, and the emitter.
class CallContext {
 public:
  CallContext(Emitter& emitter, std::string_view op, const std::vector<NamedArg>& args)
      : e(emitter), op_(op), args_(args) {}

  std::string_view op() const { return op_; }
  const Arg& arg(std::string_view name) const;  // absent reads as nil
  const std::vector<NamedArg>& args() const { return args_; }
  bool has(std::string_view name) const;               // present and not nil
  bool is_tensor(std::string_view name) const;         // a tensor, not a number or nil
  Ref in(std::string_view name) const;                 // the tensor; -1 when nil
  std::vector<Ref> list(std::string_view name) const;  // tensors; also of a single one
  TensorType type(std::string_view name) const { return e.type(in(name)); }
  Shape shape(std::string_view name) const { return type(name).shape; }
  DType dtype(std::string_view name) const { return type(name).dtype; }
  int64_t rank(std::string_view name) const { return static_cast<int64_t>(shape(name).size()); }
  int64_t integer(std::string_view name, int64_t if_nil = 0) const;
  double real(std::string_view name, double if_nil = 0) const;
  bool boolean(std::string_view name, bool if_nil = false) const;
  std::string text(std::string_view name, std::string_view if_nil = {}) const;
  std::vector<int64_t> ints(std::string_view name) const;  // nil: empty; one integer: a list of it
  // Dimension arguments as 0 … rank-1. `dims` of nil or an empty list are all dimensions.
  int64_t dim(std::string_view name, std::string_view tensor = "self") const;
  std::vector<int64_t> dims(std::string_view name, std::string_view tensor = "self") const;

  // Emits one call: c("aten::mul.Tensor", a, b).
  template <class... A>
  Ref operator()(std::string_view op, A&&... args) {
    return e(op, std::forward<A>(args)...);
  }

  Emitter& e;

 private:
  std::string_view op_;
  const std::vector<NamedArg>& args_;
};

// What a forward rewrite keeps for its backward, by name.
using Kept = std::map<std::string, Ref, std::less<>>;

class Forward : public CallContext {
 public:
  Forward(Tape& tape, Emitter& emitter, std::string_view op, const std::vector<NamedArg>& args,
          bool training, int ordinal)
      : CallContext(emitter, op, args), training_(training), ordinal_(ordinal), tape_(tape) {}

  // Emits a call whose derivative follows from its own rule (for expansions).
  template <class... A>
  Ref grad_call(std::string_view op, A&&... args) {
    return grad_calls(op, {to_arg(std::forward<A>(args))...}).front();
  }
  std::vector<Ref> grad_calls(std::string_view op, std::vector<Arg> args);

  // Sets the outputs of the call.
  void result(Ref out) { results_.push_back(out); }
  void results(const std::vector<Ref>& outs) {
    results_.insert(results_.end(), outs.begin(), outs.end());
  }
  void keep(const std::string& name, Ref ref) { kept_[name] = ref; }

  bool training() const { return training_; }  // a gradient will be asked for
  int ordinal() const { return ordinal_; }     // of the call among those of its module
  const Tape& tape() const { return tape_; }
  std::vector<Ref>& taken() { return results_; }
  Kept& kept() { return kept_; }

 private:
  bool training_;
  int ordinal_;
  Tape& tape_;
  std::vector<Ref> results_;
  Kept kept_;
};

class Backward : public CallContext {
 public:
  // `needs` has one flag a tensor operand, in argument order, lists expanded, nil left out.
  Backward(Emitter& emitter, std::string_view op, const std::vector<NamedArg>& args,
           const std::vector<Ref>& outs, const std::vector<Ref>& grads, const Kept& kept,
           const std::vector<bool>& needs);

  Ref out(size_t i = 0) const { return outs_.at(i); }
  size_t out_count() const { return outs_.size(); }
  // Gradient of an output; -1 when no path leads from it to the loss.
  Ref grad(size_t i = 0) const { return grads_.at(i); }
  Ref grad_or_zeros(size_t i);
  Ref kept(std::string_view name) const;
  bool needs(std::string_view name, size_t index = 0) const;

  // Hands over the gradient of a tensor argument (of a list: of its entry `index`), reduced to the
  // argument's shape and cast to its dtype here. Dropped when it is not needed.
  void give(std::string_view name, Ref gradient, size_t index = 0);
  // The result: per tensor operand as in `needs`.
  const std::vector<Ref>& given() const { return given_; }

 private:
  std::optional<size_t> position(std::string_view name, size_t index) const;

  const std::vector<Ref>& outs_;
  const std::vector<Ref>& grads_;
  const Kept& kept_;
  const std::vector<bool>& needs_;
  std::vector<Ref> given_;
};

// Returns false to leave the call as it is (the rewrite serves only some arguments).
using ForwardRule = bool (*)(Forward&);
using BackwardRule = void (*)(Backward&);

enum class RuleKind { backward, expand, constant };
std::string_view name_of(RuleKind kind);

struct Rule {
  std::string_view op;  // "aten::add", or with overload where overloads differ
  RuleKind kind = RuleKind::backward;
  ForwardRule forward = nullptr;
  BackwardRule backward = nullptr;
};

inline Rule gradient(std::string_view op, BackwardRule backward) {
  return {op, RuleKind::backward, nullptr, backward};
}
inline Rule rewrite(std::string_view op, ForwardRule forward, BackwardRule backward) {
  return {op, RuleKind::backward, forward, backward};
}
inline Rule expands(std::string_view op, ForwardRule forward) {
  return {op, RuleKind::expand, forward, nullptr};
}
inline Rule constant(std::string_view op) {
  return {op, RuleKind::constant, nullptr, nullptr};
}

// The families, one file each.
std::span<const Rule> elementwise_rules();
std::span<const Rule> reduce_rules();
std::span<const Rule> shape_rules();
std::span<const Rule> matmul_rules();
std::span<const Rule> nn_rules();
std::span<const Rule> loss_rules();
std::span<const Rule> index_rules();
std::span<const Rule> conv_rules();
std::span<const Rule> comm_rules();

// The rule of "aten::add.Tensor": by full name, then without the overload; nullptr: none.
const Rule* find_rule(std::string_view op);
// All rules, sorted by operator.
std::vector<const Rule*> all_rules();

}  // namespace nns::lower
