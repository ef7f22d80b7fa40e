// A linear program, some of whose columns may be integers, and who solves it: HiGHS, which the
// highsbox wheel brings. It is behind a library of its own, libnnscaler_highs.so, opened at its
// first use: without it the planner says what its own search knows.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace nns::solve {

// Costs are minimised; columns lie between 0 and a finite `upper`.
struct LinearProgram {
  static constexpr double kInfinite = std::numeric_limits<double>::infinity();
  struct Term {
    int column = 0;
    double value = 0;
  };

  int column(double cost, double upper = 1, bool integer = false);
  // lower ≤ the terms ≤ upper; terms of one column add up.
  void row(double lower, const std::vector<Term>& terms, double upper);

  std::vector<double> costs, uppers;
  std::vector<bool> integer;
  std::vector<int> starts{0}, columns;  // of the terms of each row
  std::vector<double> values, row_lower, row_upper;
};

struct LinearAnswer {
  enum class Status { solved, infeasible, stopped };
  Status status = Status::stopped;
  double cost = 0;             // of a program that is solved
  std::vector<double> values;  // of its columns
  // Prices of its rows, where no column is an integer: any prices prove a bound (`bound_by`).
  std::vector<double> prices = {};
};

// Limits count work, since how long it takes differs from run to run.
struct LinearLimits {
  int nodes = 100'000;          // of branch and bound
  int iterations = 10'000'000;  // of the simplex method
};

// Nothing where there is no HiGHS. `relaxed`: no column is an integer.
std::optional<LinearAnswer> solve_linear(const LinearProgram& program, bool relaxed,
                                         const LinearLimits& limits = {});

// A cost that no solution goes below, by these prices of rows alone: true whoever found them.
double bound_by(const LinearProgram& program, const std::vector<double>& prices);

// Why there is no HiGHS, or nothing.
std::string highs_problem();

// The entry of the library.
inline constexpr const char* kHighsLibrary = "libnnscaler_highs.so";
inline constexpr const char* kHighsFunction = "nns_solve_linear";
using SolveLinear = void(const LinearProgram& program, bool relaxed, const LinearLimits& limits,
                         LinearAnswer& out);

}  // namespace nns::solve
