// Module paths, call ordinals and random keys.
#include "tensor/scope.h"

#include "base/error.h"

namespace nns::tensor {

void Scope::pop_module() {
  if (modules_.empty()) fail(ErrorKind::internal, "[tensor.scope] pop_module without push_module");
  modules_.pop_back();
}

void Scope::reset_modules(int depth) {
  if (depth < 0 || depth > module_depth())
    fail(ErrorKind::internal, "[tensor.scope] module depth {}; expected 0 to {}", depth,
         module_depth());
  modules_.resize(static_cast<size_t>(depth));
}

const std::string& Scope::module() const {
  static const std::string kNone;
  return modules_.empty() ? kNone : modules_.back();
}

int Scope::next_ordinal(std::string_view op) {
  std::string key = module();
  key += '\n';
  key += op;
  return ordinals_[std::move(key)]++;
}

std::string Scope::random_key(std::string_view module, std::string_view op, int ordinal) {
  if (const size_t colons = op.find("::"); colons != std::string_view::npos)
    op.remove_prefix(colons + 2);
  return fmt::format("{}:{}#{}", module, op.substr(0, op.find('.')), ordinal);
}

std::string Scope::next_random_key(std::string_view op) {
  return random_key(module(), op, next_ordinal(op));
}

}  // namespace nns::tensor
