// Parts of split calls that are more than the call on local tensors: a mean over elements that
// several devices hold, a table of which a device holds some rows, classes spread over devices,
// statistics of a batch that is cut. A record that has such splits says which (`assisted`) and
// writes this device's part (`part`).
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "operators/derivative.h"

namespace nns::operators {

// Where the tensors of a split call lie, seen from one device; `lower` knows it from the plan.
class Placed {
 public:
  virtual ~Placed() = default;
  // Shape of the unsplit operand.
  virtual const Shape& whole(std::string_view operand) const = 0;
  // Ranks whose pieces of the operand make up, with this one, the dimensions for which `wanted`
  // holds; empty where none of them is cut.
  virtual Shape ranks_of(std::string_view operand,
                         const std::function<bool(int64_t dim)>& wanted) const = 0;
  // A number of the place of this device's piece of the operand along a dimension: of the first
  // index and the one behind the last. It may differ between devices that share the program.
  virtual int64_t place(std::string_view operand, int64_t dim,
                        const std::function<int64_t(int64_t start, int64_t stop)>& of) const = 0;
  virtual int64_t length(std::string_view operand, int64_t dim) const = 0;
  // The ranks of `ranks_of` for one dimension, in the order of their pieces; the lengths of those,
  // and which of them is this device's. Lengths and number are the same on all devices that share
  // the program.
  virtual Shape ring(std::string_view operand, int64_t dim) const = 0;
  virtual Shape lengths(std::string_view operand, int64_t dim) const = 0;
  virtual int64_t position(std::string_view operand, int64_t dim) const = 0;
  // Whether that is the order of the ranks.
  virtual bool ascending(std::string_view operand, int64_t dim) const = 0;
  // Ranks that hold the other addends of the first output; empty where it is no sum.
  virtual Shape addends() const = 0;
};

// A part in the making: the call on local operands, and what writes its calls.
class Part : public RuleCall {
 public:
  Part(const Placed& placed, Recording& recording, CallWriter& writer, std::string_view op,
       const std::vector<NamedArg>& args)
      : RuleCall(writer, op, args), placed(placed), recording_(recording) {}

  // Writes a call whose derivative is wanted, with outputs of the given types when those are known.
  std::vector<Ref> apply(std::string_view op, std::vector<NamedArg> args,
                         const std::vector<TensorType>* types = nullptr) {
    return recording_.record(op, std::move(args), types);
  }
  template <class... A>
  Ref grad(std::string_view op, A&&... values) {
    return apply(op, named_args(op, {to_arg(std::forward<A>(values))...})).front();
  }
  // The sum over ranks; its gradient is whole on each of them, or an addend (`partial`).
  Ref summed(Ref x, const Shape& ranks, bool partial);
  // The same of what has no derivative, or the greatest (`reduce` = "max").
  Ref plain_sum(Ref x, const Shape& ranks, const char* reduce = nullptr);
  // The operand, which counts on the first of the ranks only.
  Ref first_only(std::string_view operand, const Shape& ranks);
  // Positions in this device's piece of a dimension of an operand, and where they are none.
  std::pair<Ref, Ref> local_positions(Ref positions, std::string_view operand, int64_t dim);

  const Placed& placed;

 private:
  Recording& recording_;
};

// Returns the outputs of the part, or nothing where the call on local tensors alone is the part.
using PartRule = std::function<std::optional<std::vector<Ref>>(Part&)>;

}  // namespace nns::operators
