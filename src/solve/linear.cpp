#include "solve/linear.h"

#include <algorithm>
#include <map>

#include "base/plugin.h"

namespace nns::solve {

int LinearProgram::column(double cost, double upper, bool is_integer) {
  costs.push_back(cost);
  uppers.push_back(upper);
  integer.push_back(is_integer);
  return static_cast<int>(costs.size()) - 1;
}

void LinearProgram::row(double lower, const std::vector<Term>& terms, double upper) {
  std::map<int, double> sums;
  for (const Term& term : terms) sums[term.column] += term.value;
  for (const auto& [column, value] : sums) {
    if (value == 0) continue;
    columns.push_back(column);
    values.push_back(value);
  }
  starts.push_back(static_cast<int>(columns.size()));
  row_lower.push_back(lower);
  row_upper.push_back(upper);
}

namespace {

const Plugin& highs() {
  static const Plugin plugin = open_plugin(kHighsLibrary, kHighsFunction);
  return plugin;
}

}  // namespace

std::string highs_problem() {
  return highs().function == nullptr ? highs().error : "";
}

std::optional<LinearAnswer> solve_linear(const LinearProgram& program, bool relaxed,
                                         const LinearLimits& limits) {
  if (highs().function == nullptr) return std::nullopt;
  LinearAnswer out;
  reinterpret_cast<SolveLinear*>(highs().function)(program, relaxed, limits, out);
  return out;
}

// Rows are taken into the cost at their prices; then each column is at the better of its bounds.
double bound_by(const LinearProgram& program, const std::vector<double>& prices) {
  std::vector<double> reduced = program.costs;
  double bound = 0;
  for (size_t r = 0; r < prices.size(); ++r) {
    const double side = prices[r] > 0 ? program.row_lower[r] : program.row_upper[r];
    if (prices[r] == 0 || side == LinearProgram::kInfinite || side == -LinearProgram::kInfinite)
      continue;
    bound += prices[r] * side;
    for (int i = program.starts[r]; i < program.starts[r + 1]; ++i) {
      const auto k = static_cast<size_t>(i);
      reduced[static_cast<size_t>(program.columns[k])] -= prices[r] * program.values[k];
    }
  }
  for (size_t c = 0; c < reduced.size(); ++c)
    bound += std::min(0.0, reduced[c]) * program.uppers[c];
  return bound;
}

}  // namespace nns::solve
