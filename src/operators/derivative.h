// Derivatives. A rule works on one local call (operator, typed arguments, which of them need
// gradients) and writes calls through a CallWriter; it knows neither partitions nor devices, so
// that it serves whole operators and their shards.
//
// A derivative has one of these shapes:
//   backward only        the forward call stays as it is
//   forward + backward   the forward call is rewritten (layer_norm → native_layer_norm), and what
//                        the derivative needs is kept
//   expansion            the call becomes other calls that have rules of their own
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operators/call_writer.h"

namespace nns::operators {

// The recording of a forward pass, as a rule sees it.
class Recording {
 public:
  virtual ~Recording() = default;
  // Writes a call by its own rule, so that its derivative follows from that, and returns its
  // outputs, of the given types when those are known.
  virtual std::vector<Ref> record(std::string_view op, std::vector<NamedArg> args,
                                  const std::vector<TensorType>* types = nullptr) = 0;
  virtual bool requires_grad(Ref ref) const = 0;
  // A call of the recording, by one of its outputs.
  struct Made {
    std::string op;
    std::vector<NamedArg> args;
    size_t output = 0, outputs = 1;  // which one, of how many
    int region = -1;                 // recompute region

    std::vector<Ref> operands() const;         // its tensors in order
    Ref operand(std::string_view name) const;  // -1: no tensor
  };
  // The call that made a slot; nullptr where nobody knows it, or where it belongs to another
  // recompute region than the call in work.
  virtual const Made* maker(Ref ref) const = 0;
  // Where the first tensor operand of the call in work lies in the unsplit one of shape `full`;
  // empty: it is whole.
  virtual const Shape& offset() const = 0;
  virtual const Shape& full() const = 0;
};

// What rules share: the call's arguments, and the writer.
class RuleCall : public CallView {
 public:
  RuleCall(CallWriter& writer, std::string_view op, const std::vector<NamedArg>& args)
      : CallView(op, args, [&writer](int id) -> const TensorType& { return writer.type_of(id); }),
        e(writer) {}

  // Writes one call: c("aten::mul.Tensor", a, b).
  template <class... A>
  Ref operator()(std::string_view op, A&&... args) {
    return e(op, std::forward<A>(args)...);
  }

  CallWriter& e;
};

// What a forward rewrite keeps for its backward, by name.
using Kept = std::map<std::string, Ref, std::less<>>;

class Forward : public RuleCall {
 public:
  Forward(Recording& recording, CallWriter& writer, std::string_view op,
          const std::vector<NamedArg>& args, bool training, int ordinal)
      : RuleCall(writer, op, args), training_(training), ordinal_(ordinal), recording_(recording) {}

  // Emits a call whose derivative follows from its own rule (for expansions).
  template <class... A>
  Ref grad_call(std::string_view op, A&&... args) {
    return grad_calls(op, {to_arg(std::forward<A>(args))...}).front();
  }
  std::vector<Ref> grad_calls(std::string_view op, std::vector<Arg> args) {
    return recording_.record(op, named_args(op, std::move(args)));
  }

  // Sets the outputs of the call.
  void result(Ref out) { results_.push_back(out); }
  void results(const std::vector<Ref>& outs) {
    results_.insert(results_.end(), outs.begin(), outs.end());
  }
  void keep(const std::string& name, Ref ref) { kept_[name] = ref; }

  bool training() const { return training_; }  // a gradient will be asked for
  int ordinal() const { return ordinal_; }     // of the call among those of its module
  const Recording& recording() const { return recording_; }
  std::vector<Ref>& taken() { return results_; }
  Kept& kept() { return kept_; }

 private:
  bool training_;
  int ordinal_;
  Recording& recording_;
  std::vector<Ref> results_;
  Kept kept_;
};

class Backward : public RuleCall {
 public:
  // `needs` has one flag a tensor operand, in argument order, lists expanded, nil left out.
  Backward(CallWriter& writer, std::string_view op, const std::vector<NamedArg>& args,
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

// The rule of a composite whose script writes its derivative (Record::backward).
void backward_by_calls(Backward& b);

// Returns false to leave the call as it is (the rewrite serves only some arguments).
using ForwardRule = bool (*)(Forward&);
using BackwardRule = void (*)(Backward&);

// Another operator that does the work of a call where it serves it: on some devices, for some
// dtypes and arguments. `write` puts it there, recorded with a derivative of its own.
struct Kernel {
  std::string op;
  bool (*serves)(const Forward&);
  void (*write)(Forward&);
};

enum class DerivativeKind { none, backward, expansion };

struct Derivative {
  DerivativeKind kind = DerivativeKind::none;
  ForwardRule forward = nullptr;
  BackwardRule backward = nullptr;
};

inline Derivative gradient(BackwardRule backward) {
  return {DerivativeKind::backward, nullptr, backward};
}
inline Derivative rewrite(ForwardRule forward, BackwardRule backward) {
  return {DerivativeKind::backward, forward, backward};
}
inline Derivative expands(ForwardRule forward) {
  return {DerivativeKind::expansion, forward, nullptr};
}

}  // namespace nns::operators
