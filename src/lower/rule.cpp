// The rule table and the contexts that rules see.
#include "lower/rule.h"

#include <algorithm>
#include <unordered_map>

#include "annotate/op_table.h"
#include "base/error.h"

namespace nns::lower {
namespace {

[[noreturn]] void bad_argument(const CallContext& c, std::string_view name, const char* expected) {
  fail(ErrorKind::model, "[lower.{}] argument '{}' is not {}", c.op(), name, expected);
}

int64_t wrap(int64_t dim, int64_t rank) {
  return dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim;
}

}  // namespace

std::string_view name_of(RuleKind kind) {
  switch (kind) {
    case RuleKind::backward:
      return "rule";
    case RuleKind::expand:
      return "composite";
    case RuleKind::constant:
      return "constant";
  }
  return "";
}

const Arg& CallContext::arg(std::string_view name) const {
  static const Arg nil;
  for (const NamedArg& a : args_)
    if (a.name == name) return a.value;
  return nil;
}

bool CallContext::has(std::string_view name) const {
  const Arg& a = arg(name);
  if (const auto* ref = std::get_if<Ref>(&a)) return ref->id >= 0;
  return !std::holds_alternative<std::monostate>(a);
}

bool CallContext::is_tensor(std::string_view name) const {
  const auto* ref = std::get_if<Ref>(&arg(name));
  return ref != nullptr && ref->id >= 0;
}

Ref CallContext::in(std::string_view name) const {
  const Arg& a = arg(name);
  if (const auto* ref = std::get_if<Ref>(&a)) return *ref;
  if (std::holds_alternative<std::monostate>(a)) return {};
  bad_argument(*this, name, "a tensor");
}

std::vector<Ref> CallContext::list(std::string_view name) const {
  const Arg& a = arg(name);
  if (const auto* refs = std::get_if<std::vector<Ref>>(&a)) return *refs;
  if (const auto* ref = std::get_if<Ref>(&a)) return {*ref};
  if (std::holds_alternative<std::monostate>(a)) return {};
  if (const auto* none = std::get_if<Shape>(&a); none != nullptr && none->empty()) return {};
  bad_argument(*this, name, "a list of tensors");
}

int64_t CallContext::integer(std::string_view name, int64_t if_nil) const {
  const Arg& a = arg(name);
  if (std::holds_alternative<std::monostate>(a)) return if_nil;
  if (const auto* i = std::get_if<int64_t>(&a)) return *i;
  if (const auto* b = std::get_if<bool>(&a)) return *b;
  if (const auto* list = std::get_if<Shape>(&a); list != nullptr && list->size() == 1)
    return list->front();
  bad_argument(*this, name, "an integer");
}

double CallContext::real(std::string_view name, double if_nil) const {
  const Arg& a = arg(name);
  if (std::holds_alternative<std::monostate>(a)) return if_nil;
  if (const auto* d = std::get_if<double>(&a)) return *d;
  if (const auto* i = std::get_if<int64_t>(&a)) return static_cast<double>(*i);
  if (const auto* b = std::get_if<bool>(&a)) return *b ? 1.0 : 0.0;
  bad_argument(*this, name, "a number");
}

bool CallContext::boolean(std::string_view name, bool if_nil) const {
  const Arg& a = arg(name);
  if (std::holds_alternative<std::monostate>(a)) return if_nil;
  if (const auto* b = std::get_if<bool>(&a)) return *b;
  bad_argument(*this, name, "true or false");
}

std::string CallContext::text(std::string_view name, std::string_view if_nil) const {
  const Arg& a = arg(name);
  if (std::holds_alternative<std::monostate>(a)) return std::string(if_nil);
  if (const auto* s = std::get_if<std::string>(&a)) return *s;
  if (const auto* s = std::get_if<graph::Symbol>(&a)) return s->name;
  bad_argument(*this, name, "a text");
}

std::vector<int64_t> CallContext::ints(std::string_view name) const {
  const Arg& a = arg(name);
  if (std::holds_alternative<std::monostate>(a)) return {};
  if (const auto* list = std::get_if<Shape>(&a)) return *list;
  if (const auto* i = std::get_if<int64_t>(&a)) return {*i};
  if (const auto* refs = std::get_if<std::vector<Ref>>(&a); refs != nullptr && refs->empty())
    return {};
  bad_argument(*this, name, "a list of integers");
}

int64_t CallContext::dim(std::string_view name, std::string_view tensor) const {
  return wrap(integer(name), rank(tensor));
}

std::vector<int64_t> CallContext::dims(std::string_view name, std::string_view tensor) const {
  std::vector<int64_t> result = ints(name);
  const int64_t n = rank(tensor);
  if (result.empty())
    for (int64_t i = 0; i < n; ++i) result.push_back(i);
  for (int64_t& d : result) d = wrap(d, n);
  if (n == 0) result.clear();
  return result;
}

Backward::Backward(Emitter& emitter, std::string_view op, const std::vector<NamedArg>& args,
                   const std::vector<Ref>& outs, const std::vector<Ref>& grads, const Kept& kept,
                   const std::vector<bool>& needs)
    : CallContext(emitter, op, args),
      outs_(outs),
      grads_(grads),
      kept_(kept),
      needs_(needs),
      given_(needs.size()) {}

Ref Backward::grad_or_zeros(size_t i) {
  if (grads_.at(i).id >= 0) return grads_[i];
  Ref like = grads_[i];
  for (Ref other : grads_)
    if (other.id >= 0) like = other;
  return e.zeros(like, e.type(outs_[i]));
}

Ref Backward::kept(std::string_view name) const {
  const auto it = kept_.find(name);
  NNS_CHECK(it != kept_.end(), "{}: nothing kept as '{}'", op(), name);
  return it->second;
}

std::optional<size_t> Backward::position(std::string_view name, size_t index) const {
  size_t at = 0;
  for (const NamedArg& a : args()) {
    if (const auto* ref = std::get_if<Ref>(&a.value)) {
      if (ref->id < 0) continue;
      if (a.name == name) return at;
      ++at;
    } else if (const auto* refs = std::get_if<std::vector<Ref>>(&a.value)) {
      for (size_t i = 0; i < refs->size(); ++i) {
        if ((*refs)[i].id < 0) continue;
        if (a.name == name && i == index) return at;
        ++at;
      }
    }
  }
  return std::nullopt;
}

bool Backward::needs(std::string_view name, size_t index) const {
  const auto at = position(name, index);
  return at && needs_[*at];
}

void Backward::give(std::string_view name, Ref gradient, size_t index) {
  const auto at = position(name, index);
  if (!at || !needs_[*at] || gradient.id < 0) return;
  NNS_CHECK(given_[*at].id < 0, "{}: gradient of '{}' given twice", op(), name);
  const Arg& a = arg(name);
  const auto* refs = std::get_if<std::vector<Ref>>(&a);
  const TensorType to = e.type(refs != nullptr ? refs->at(index) : std::get<Ref>(a));
  given_[*at] = e.cast(e.sum_to(gradient, to.shape), to.dtype);
}

namespace {

struct Table {
  std::unordered_map<std::string_view, const Rule*> by_name;
  std::vector<const Rule*> sorted;
  Table() {
    for (std::span<const Rule> family :
         {elementwise_rules(), reduce_rules(), shape_rules(), matmul_rules(), nn_rules(),
          loss_rules(), index_rules(), conv_rules(), comm_rules()})
      for (const Rule& rule : family) {
        NNS_CHECK(by_name.emplace(rule.op, &rule).second, "two rules for {}", rule.op);
        sorted.push_back(&rule);
      }
    std::sort(sorted.begin(), sorted.end(),
              [](const Rule* a, const Rule* b) { return a->op < b->op; });
  }
};

const Table& table() {
  static const Table instance;
  return instance;
}

}  // namespace

const Rule* find_rule(std::string_view op) {
  const auto& names = table().by_name;
  if (const auto it = names.find(op); it != names.end()) return it->second;
  const auto it = names.find(op.substr(0, op.find('.')));
  return it != names.end() ? it->second : nullptr;
}

std::vector<const Rule*> all_rules() {
  return table().sorted;
}

}  // namespace nns::lower
