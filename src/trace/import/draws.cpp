// Random numbers of an exported program.
#include <algorithm>

#include "operators/record.h"
#include "trace/import/parts.h"

namespace nns::trace::import {
namespace {

bool is_counted(const std::string& op) {
  const operators::Record* record = operators::find(op);
  return record != nullptr && record->counted;
}

const Term* argument(const Step& step, std::string_view name) {
  const auto it = std::find_if(step.args.begin(), step.args.end(),
                               [&](const auto& arg) { return arg.first == name; });
  return it == step.args.end() ? nullptr : &it->second;
}

std::string without_overload(const std::string& op) {
  return op.substr(0, op.find('.', op.find("::")));
}

class Speller {
 public:
  explicit Speller(Body& body) : body_(body) {}

  // Appends the step, or the steps that stand for it.
  void add(Step step) {
    if (!write(step) && !make(step)) steps_.push_back(std::move(step));
  }
  std::vector<Step> take() { return std::move(steps_); }

 private:
  // An intermediate value at the place of `step`.
  Term call(const Step& step, std::string op, std::vector<std::pair<std::string, Term>> args) {
    body_.slots.push_back(Kind::tensor);
    const Slot made{static_cast<int>(body_.slots.size()) - 1};
    steps_.push_back({std::move(op), std::move(args), {{{made.index}}}, step.origin});
    return {made};
  }

  // x.bernoulli_(p): x becomes what is drawn of a tensor of probabilities.
  bool write(const Step& step) {
    const auto functional = operators::functional_form(step.op);
    const Term *self = argument(step, "self"), *p = argument(step, "p");
    if (!functional || self == nullptr || p == nullptr || is_counted(*functional) ||
        !is_counted(without_overload(*functional)))
      return false;
    const Term chances = call(step, "aten::full_like", {{"self", *self}, {"fill_value", *p}});
    const Term drawn = call(step, without_overload(*functional), {{"self", chances}});
    steps_.push_back({"aten::copy_", {{"self", *self}, {"src", drawn}}, step.results, step.origin});
    return true;
  }

  // rand(size): like a tensor of this size.
  bool make(const Step& step) {
    const operators::Record* record = operators::find(step.op);
    if (record == nullptr || !record->random || record->counted || !is_counted(step.op + "_like") ||
        argument(step, "generator") != nullptr)
      return false;
    const Term empty = call(step, "aten::empty.memory_format", step.args);
    steps_.push_back({step.op + "_like", {{"self", empty}}, step.results, step.origin});
    return true;
  }

  Body& body_;
  std::vector<Step> steps_;
};

}  // namespace

void spell_draws(Body& body) {
  Speller speller(body);
  for (Step& step : body.steps) speller.add(std::move(step));
  body.steps = speller.take();
}

}  // namespace nns::trace::import
