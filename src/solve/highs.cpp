// Solves linear programs with HiGHS, by its C functions alone: highsbox is built with the old
// strings of C++. One thread and a fixed seed: the same program has the same answer.
#include <interfaces/highs_c_api.h>

#include <memory>

#include "base/error.h"
#include "solve/linear.h"

namespace nns::solve {
namespace {

struct Destroy {
  void operator()(void* highs) const { Highs_destroy(highs); }
};

void check(HighsInt status, const char* what) {
  NNS_CHECK(status != kHighsStatusError, "HiGHS refuses {}", what);
}

}  // namespace
}  // namespace nns::solve

extern "C" void nns_solve_linear(const nns::solve::LinearProgram& program, bool relaxed,
                                 const nns::solve::LinearLimits& limits,
                                 nns::solve::LinearAnswer& out) {
  using namespace nns::solve;
  using Status = LinearAnswer::Status;
  const std::unique_ptr<void, Destroy> owner(Highs_create());
  void* const highs = owner.get();
  check(Highs_setBoolOptionValue(highs, "output_flag", 0), "an option");
  check(Highs_setIntOptionValue(highs, "threads", 1), "an option");
  check(Highs_setStringOptionValue(highs, "parallel", "off"), "an option");
  check(Highs_setStringOptionValue(highs, "solver", "simplex"), "an option");
  check(Highs_setIntOptionValue(highs, "random_seed", 0), "an option");
  check(Highs_setIntOptionValue(highs, "mip_max_nodes", limits.nodes), "an option");
  check(Highs_setIntOptionValue(highs, "simplex_iteration_limit", limits.iterations), "an option");
  check(Highs_setDoubleOptionValue(highs, "mip_rel_gap", 0), "an option");
  check(Highs_setDoubleOptionValue(highs, "mip_abs_gap", 0), "an option");
  check(Highs_setDoubleOptionValue(highs, "mip_feasibility_tolerance", 1e-9), "an option");
  check(Highs_setDoubleOptionValue(highs, "primal_feasibility_tolerance", 1e-9), "an option");
  check(Highs_setDoubleOptionValue(highs, "dual_feasibility_tolerance", 1e-9), "an option");

  const auto columns = static_cast<HighsInt>(program.costs.size());
  const auto rows = static_cast<HighsInt>(program.row_lower.size());
  const std::vector<double> lower(program.costs.size(), 0);
  std::vector<HighsInt> integer;
  if (!relaxed) integer.assign(program.integer.begin(), program.integer.end());
  check(Highs_passModel(highs, columns, rows, static_cast<HighsInt>(program.values.size()), 0,
                        kHighsMatrixFormatRowwise, 0, kHighsObjSenseMinimize, 0,
                        program.costs.data(), lower.data(), program.uppers.data(),
                        program.row_lower.data(), program.row_upper.data(), program.starts.data(),
                        program.columns.data(), program.values.data(), nullptr, nullptr, nullptr,
                        relaxed ? nullptr : integer.data()),
        "a program");
  check(Highs_run(highs), "to run");
  switch (Highs_getModelStatus(highs)) {
    case kHighsModelStatusOptimal:
    case kHighsModelStatusModelEmpty:
      out.status = Status::solved;
      break;
    case kHighsModelStatusInfeasible:
      out.status = Status::infeasible;
      return;
    default:
      out.status = Status::stopped;
      return;
  }
  out.cost = Highs_getObjectiveValue(highs);
  out.values.resize(program.costs.size());
  std::vector<double> reduced(program.costs.size()), activity(program.row_lower.size());
  out.prices.resize(program.row_lower.size());
  check(Highs_getSolution(highs, out.values.data(), reduced.data(), activity.data(),
                          out.prices.data()),
        "to tell a solution");
  if (!relaxed) out.prices.clear();
}
