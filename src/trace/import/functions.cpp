#include "trace/import/functions.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace nns::trace::import {
namespace {

using Numbers = std::vector<double>;
using Function = double (*)(const Numbers&);

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

struct Known {
  size_t least, most;  // arguments
  Function run;
};

double power(const Numbers& x) {
  return std::pow(x[0], x[1]);
}
double floor_divide(const Numbers& x) {
  if (x[1] == 0) fail(ErrorKind::model, "[import.number] a size is divided by 0");
  return std::floor(x[0] / x[1]);
}
double modulo(const Numbers& x) {
  return x[0] - floor_divide(x) * x[1];
}

// Python's functions that sizes go through (torch/_export/serde/serialize.py lists them).
const std::map<std::string_view, Known> kNumbers = {
    {"_operator.add", {2, 2, [](const Numbers& x) { return x[0] + x[1]; }}},
    {"_operator.sub", {2, 2, [](const Numbers& x) { return x[0] - x[1]; }}},
    {"_operator.mul", {2, 2, [](const Numbers& x) { return x[0] * x[1]; }}},
    {"_operator.truediv", {2, 2, [](const Numbers& x) { return x[0] / x[1]; }}},
    {"_operator.floordiv", {2, 2, floor_divide}},
    {"_operator.mod", {2, 2, modulo}},
    {"_operator.pow", {2, 2, power}},
    {"_operator.neg", {1, 1, [](const Numbers& x) { return -x[0]; }}},
    {"_operator.pos", {1, 1, [](const Numbers& x) { return x[0]; }}},
    {"_operator.eq", {2, 2, [](const Numbers& x) { return double(x[0] == x[1]); }}},
    {"_operator.ne", {2, 2, [](const Numbers& x) { return double(x[0] != x[1]); }}},
    {"_operator.lt", {2, 2, [](const Numbers& x) { return double(x[0] < x[1]); }}},
    {"_operator.le", {2, 2, [](const Numbers& x) { return double(x[0] <= x[1]); }}},
    {"_operator.gt", {2, 2, [](const Numbers& x) { return double(x[0] > x[1]); }}},
    {"_operator.ge", {2, 2, [](const Numbers& x) { return double(x[0] >= x[1]); }}},
    {"_operator.and_", {2, 2, [](const Numbers& x) { return double(x[0] != 0 && x[1] != 0); }}},
    {"_operator.or_", {2, 2, [](const Numbers& x) { return double(x[0] != 0 || x[1] != 0); }}},
    {"math.trunc", {1, 1, [](const Numbers& x) { return std::trunc(x[0]); }}},
    {"math.ceil", {1, 1, [](const Numbers& x) { return std::ceil(x[0]); }}},
    {"math.floor", {1, 1, [](const Numbers& x) { return std::floor(x[0]); }}},
    {"round", {1, 1, [](const Numbers& x) { return std::nearbyint(x[0]); }}},
    {"torch.sym_int", {1, 1, [](const Numbers& x) { return std::trunc(x[0]); }}},
    {"torch.sym_float", {1, 1, [](const Numbers& x) { return x[0]; }}},
    {"torch.sym_not", {1, 1, [](const Numbers& x) { return double(x[0] == 0); }}},
    {"torch.sym_ite", {3, 3, [](const Numbers& x) { return x[0] != 0 ? x[1] : x[2]; }}},
    {"torch.sym_max", {2, 2, [](const Numbers& x) { return std::max(x[0], x[1]); }}},
    {"torch.sym_min", {2, 2, [](const Numbers& x) { return std::min(x[0], x[1]); }}},
    {"torch.sym_sqrt", {1, 1, [](const Numbers& x) { return std::sqrt(x[0]); }}},
    {"torch._sym_sqrt", {1, 1, [](const Numbers& x) { return std::sqrt(x[0]); }}},
};

[[noreturn]] void refuse(const Step& step, std::string_view what, const char* hint) {
  throw Error(ErrorKind::model,
              fmt::format("[import.operator] {} {}; {}", step.op, what, describe(step.origin)),
              hint);
}

const Term& argument(const Step& step, size_t index) {
  if (index >= step.args.size()) refuse(step, "lacks an argument", "export the model again");
  return step.args[index].second;
}
std::shared_ptr<const Body> body_at(const Step& step, size_t index) {
  const auto* body = std::get_if<std::shared_ptr<const Body>>(&argument(step, index).value);
  if (body == nullptr) refuse(step, "has no sub-graph where one is due", "export the model again");
  return *body;
}
const bool* flag_at(const Step& step, size_t index) {
  return std::get_if<bool>(&argument(step, index).value);
}

// Operands from `first` on: one an argument, or all in one list.
std::vector<Term> operands_from(const Step& step, size_t first) {
  std::vector<Term> out;
  for (size_t i = first; i < step.args.size(); ++i) {
    if (!step.args[i].first.empty()) continue;  // an option by name
    if (const auto* list = std::get_if<std::vector<Term>>(&step.args[i].second.value))
      out.insert(out.end(), list->begin(), list->end());
    else
      out.push_back(step.args[i].second);
  }
  return out;
}

Inner gradients(const Step& step, const std::function<bool(const Term&)>&) {
  const bool* on = flag_at(step, 0);
  if (on == nullptr) refuse(step, "does not say whether gradients are wanted", "export it again");
  return {*on ? Inner::Mode::gradients : Inner::Mode::no_gradients, body_at(step, 1),
          operands_from(step, 2)};
}
Inner autocast(const Step& step, const std::function<bool(const Term&)>&) {
  if (const bool* on = flag_at(step, 2); on == nullptr || *on)
    refuse(step, "turns autocast on, which a graph cannot hold",
           "export the model without torch.autocast; cast it: model.to(torch.bfloat16)");
  return {Inner::Mode::plain, body_at(step, 4), operands_from(step, 5)};
}
Inner checkpoint(const Step& step, const std::function<bool(const Term&)>&) {
  return {Inner::Mode::recompute, body_at(step, 0), operands_from(step, 1)};
}
Inner shared(const Step& step, const std::function<bool(const Term&)>&) {
  return {Inner::Mode::plain, body_at(step, 0), operands_from(step, 2)};
}
Inner condition(const Step& step, const std::function<bool(const Term&)>& truth) {
  return {Inner::Mode::plain, body_at(step, truth(argument(step, 0)) ? 1 : 2),
          operands_from(step, 3)};
}

using Read = Inner (*)(const Step&, const std::function<bool(const Term&)>&);
const std::map<std::string_view, Read> kInner = {
    {"wrap_with_set_grad_enabled", gradients},
    {"wrap_with_autocast", autocast},
    {"tag_activation_checkpoint", checkpoint},
    {"invoke_subgraph", shared},
    {"cond", condition},
};

Read reader_of(std::string_view target) {
  if (!is_higher_order(target)) return nullptr;
  const auto it = kInner.find(target.substr(kHigherOrder.size()));
  return it == kInner.end() ? nullptr : it->second;
}

bool is_tensor(const Term& term, const Body& body) {
  const Slot* slot = std::get_if<Slot>(&term.value);
  return slot != nullptr && body.slots[static_cast<size_t>(slot->index)] == Kind::tensor;
}

}  // namespace

bool is_higher_order(std::string_view target) {
  return target.starts_with(kHigherOrder);
}

bool is_function(std::string_view target) {
  if (target.find("::") != std::string_view::npos) return false;
  return !target.starts_with("torch.ops.") || is_higher_order(target);
}

void check_function(const Step& step, const Body& body) {
  constexpr const char* kBranch =
      "keep the computation in tensors: torch.where(condition, a, b) in place of a branch";
  if (!is_function(step.op)) return;
  if (!is_higher_order(step.op)) {
    const auto known = kNumbers.find(step.op);
    if (known == kNumbers.end())
      refuse(step, "is no operator, nor a function of sizes that is known",
             "write it with operators of torch");
    if (step.args.size() < known->second.least || step.args.size() > known->second.most)
      refuse(step, "has another number of arguments than it takes", "export the model again");
    return;
  }
  if (reader_of(step.op) == nullptr)
    refuse(step, "is a higher-order operator that cannot be imported", kBranch);
  bool depends = false;
  inner_of(step, [&](const Term& term) {
    depends = is_tensor(term, body);
    return true;
  });
  if (depends) refuse(step, "takes a branch that depends on the data of a tensor", kBranch);
}

double number_of(const Step& step, const std::vector<double>& args) {
  return kNumbers.at(step.op).run(args);
}

Inner inner_of(const Step& step, const std::function<bool(const Term&)>& truth) {
  const Read read = reader_of(step.op);
  NNS_CHECK(read != nullptr, "no higher-order operator {}", step.op);
  return read(step, truth);
}

}  // namespace nns::trace::import
