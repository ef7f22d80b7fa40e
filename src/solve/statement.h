// Statement: an outline as a linear program. Columns say how much of each step runs in each of its
// ways, how much of each value is of each variant, and how much goes from a variant to a reader
// that wants it so; costs and bytes are on these, and on what some of them share.
#pragma once

#include <functional>

#include "solve/linear.h"
#include "solve/outline.h"

namespace nns::solve {

class Statement {
 public:
  using Term = LinearProgram::Term;
  using Sum = std::vector<Term>;

  // `elastic`: the limit may be passed at a high price, so that there is always a solution.
  Statement(const Outline& outline, bool elastic);

  const LinearProgram& program() const { return program_; }
  double seconds(double cost) const { return constant_ + cost * scale_; }
  std::vector<uint8_t> candidates(const std::vector<double>& values) const;

 private:
  // What a reader wants of its operand, and how often.
  struct Demand {
    std::map<Want, Sum> wants;
  };
  // Of one object, from a variant to a reader that wants it so.
  struct Flow {
    const Reader* reader = nullptr;
    const Want* want = nullptr;
    const Variant* variant = nullptr;
    int column = 0;
  };
  // Whether one of these is so, each of a reader.
  struct Part {
    Sum sum;
    int times = 1;
  };

  void add_steps();
  void add_values();
  void make_values();
  Demand demand_of(const StepClass& of, int operand) const;
  void add_flows(size_t number);
  void take_values();
  void charge(size_t number);
  void charge_layout(const Object& object, const std::vector<Flow>& flows, Code made);
  void spare(const Object& object, const std::vector<Flow>& flows, Code made);
  void add_homes(size_t number);
  void add_limit(bool elastic);
  void add_segments();
  void scale();

  void cost(const Sum& sum, double seconds);
  // A sum that is one where a part is, in integers; `most` is no less than it.
  Sum any(const std::vector<Part>& parts, const Sum* most = nullptr);
  static std::vector<Part> parts_of(const std::vector<Flow>& flows,
                                    const std::function<bool(const Flow&)>& wanted);

  const Outline& outline_;
  const Space& space_;
  const Question& question_;
  const int micro_batches_;
  LinearProgram program_;
  double constant_ = 0, scale_ = 1;
  std::vector<std::vector<int>> modes_, variants_;  // columns, by class and by object
  std::vector<std::vector<Demand>> demands_;        // by class and operand
  std::vector<std::vector<Flow>> flows_;            // by object
  Sum bytes_;
};

// Terms of sums.
inline Statement::Sum times(Statement::Sum sum, double factor) {
  for (Statement::Term& term : sum) term.value *= factor;
  return sum;
}
inline Statement::Sum plus(Statement::Sum a, const Statement::Sum& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace nns::solve
