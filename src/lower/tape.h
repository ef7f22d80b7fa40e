// Tape: the calls of a forward pass with what their derivatives need, and the reverse walk over
// them that writes the backward pass.
#pragma once

#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lower/emitter.h"
#include "operators/record.h"

namespace nns::lower {

// How a call is made, beside its arguments.
struct CallSite {
  int ordinal = 0;
  bool grad_enabled = true;
  int region = -1;  // recompute region
  // Where the first tensor operand lies in the unsplit one of shape `full`; empty: it is whole.
  Shape offset, full;
};

class Tape : public operators::Recording {
 public:
  Tape(Emitter& emitter, bool training) : e_(emitter), training_(training) {}

  // Emits a call by its rule and returns its outputs, of the given types when those are known.
  std::vector<Ref> apply(std::string_view op, std::vector<NamedArg> args, const CallSite& site,
                         const std::vector<TensorType>* types = nullptr);

  void require_grad(Ref ref) { set_flag(ref); }
  // Runs `write` with the calls that it records made at `site`.
  template <class F>
  auto at(const CallSite& site, F write) {
    const CallSite outer = std::exchange(site_, site);
    auto result = write();
    site_ = outer;
    return result;
  }

  // Of the call in work, for its rule.
  std::vector<Ref> record(std::string_view op, std::vector<NamedArg> args,
                          const std::vector<TensorType>* types) override {
    return apply(op, std::move(args), site_, types);
  }
  bool requires_grad(Ref ref) const override;
  const Made* maker(Ref ref) const override;
  const Shape& offset() const override { return site_.offset; }
  const Shape& full() const override { return site_.full; }

  // Writes the reverse pass from outputs, each with its seed, and returns the gradient of every
  // slot that is not a leaf (-1: none). `leaf` receives each gradient of a slot for which `is_leaf`
  // holds, at once and once per use.
  struct Leaves {
    std::function<bool(Ref)> is_leaf;
    std::function<void(Ref slot, Ref gradient)> receive;
    // Called for the gradient that each call, with these results, gives for an operand.
    std::function<void(const std::vector<Ref>& outs, Ref slot, Ref gradient)> given = nullptr;
  };
  std::vector<Ref> reverse(const std::vector<std::pair<Ref, Ref>>& seeds, const Leaves& leaves);

  // Called by `reverse` before the first derivative of a recompute region is written; writes the
  // region's forward calls anew and returns the new slot of each of its old ones.
  std::function<std::map<int, Ref>(int region)> replay;
  // Called for each call that has no rule and needs a gradient.
  std::function<void(std::string_view op)> on_fallback;

 private:
  struct Entry {
    std::string op;
    std::vector<NamedArg> args;
    std::vector<Ref> outs;
    std::vector<bool> needs;
    operators::Kept kept;
    const operators::Derivative* rule;  // nullptr: LibTorch derives it
    Origin origin;
    int region;
  };

  std::vector<Ref> expand(const operators::Record& composite, std::string_view op,
                          const std::vector<NamedArg>& args, const CallSite& site);
  void set_flag(Ref ref);
  void remember(const Entry& entry);
  void name_gradient(Ref gradient, Ref of);
  void derive(const Entry& entry, const std::vector<Ref>& grads, std::vector<Ref>& given);
  std::vector<Ref> fallback(const Entry& entry, const std::vector<Ref>& grads);

  Emitter& e_;
  bool training_;
  CallSite site_;
  std::vector<Entry> entries_;
  std::vector<bool> requires_;  // by slot
  std::unordered_map<int, Made> made_;
};

}  // namespace nns::lower
