#include "solve/ilp.h"

#include "base/error.h"
#include "solve/statement.h"

namespace nns::solve {

std::optional<Optimum> optimum(const Space& space, const Question& question) {
  NNS_CHECK(!question.classes, "a plan of classes");
  const Outline outline(space, question);
  const Statement statement(outline, false);
  const auto answer = solve_linear(statement.program(), false);
  if (!answer || answer->status == LinearAnswer::Status::stopped) return std::nullopt;
  if (answer->status == LinearAnswer::Status::infeasible) return Optimum{};
  return Optimum{true, statement.seconds(answer->cost), statement.candidates(answer->values)};
}

std::optional<double> least_seconds(const Space& space, const Question& question) {
  const Outline outline(space, question);
  const Statement statement(outline, true);
  const auto answer = solve_linear(statement.program(), true);
  if (!answer || answer->status != LinearAnswer::Status::solved) return std::nullopt;
  return statement.seconds(bound_by(statement.program(), answer->prices));
}

}  // namespace nns::solve
