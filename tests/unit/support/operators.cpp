// Arguments of a call, and the table of operators.
#include "support/operators.h"

#include <stdexcept>

namespace nns::test {

using graph::Arg;
using graph::ValueRef;

const Arg* Call::find(std::string_view name) const {
  for (const graph::NamedArg& a : args_)
    if (a.name == name) return &a.value;
  return nullptr;
}

bool Call::has(std::string_view name) const {
  const Arg* arg = find(name);
  if (arg == nullptr || std::holds_alternative<std::monostate>(*arg)) return false;
  const auto* ref = std::get_if<ValueRef>(arg);
  return ref == nullptr || ref->id >= 0;
}

Array Call::in(std::string_view name) const {
  if (!has(name)) throw std::runtime_error(std::string(op_) + " has no " + std::string(name));
  const Arg& arg = *find(name);
  if (const auto* ref = std::get_if<ValueRef>(&arg)) return tensor_(ref->id);
  return Array::number(real(name));
}

std::vector<Array> Call::holes(std::string_view name) const {
  std::vector<Array> out;
  const Arg& arg = *find(name);
  if (std::holds_alternative<Shape>(arg)) return out;  // an empty list
  for (ValueRef ref : std::get<std::vector<ValueRef>>(arg))
    out.push_back(ref.id < 0 ? Array{} : tensor_(ref.id));
  return out;
}

std::vector<Array> Call::list(std::string_view name) const {
  std::vector<Array> out;
  for (Array& a : holes(name))
    if (a.memory) out.push_back(std::move(a));
  return out;
}

double Call::real(std::string_view name, double otherwise) const {
  if (!has(name)) return otherwise;
  const Arg& arg = *find(name);
  if (const auto* i = std::get_if<int64_t>(&arg)) return static_cast<double>(*i);
  if (const auto* b = std::get_if<bool>(&arg)) return *b ? 1 : 0;
  if (const auto* s = std::get_if<graph::Symbol>(&arg))
    return static_cast<double>(s->name == "$seed"   ? counters_.seed
                               : s->name == "$step" ? counters_.step
                                                    : counters_.micro);
  return std::get<double>(arg);
}

int64_t Call::integer(std::string_view name, int64_t otherwise) const {
  return static_cast<int64_t>(real(name, static_cast<double>(otherwise)));
}

bool Call::boolean(std::string_view name, bool otherwise) const {
  return real(name, otherwise ? 1 : 0) != 0;
}

std::string Call::text(std::string_view name, std::string_view otherwise) const {
  return has(name) ? std::get<std::string>(*find(name)) : std::string(otherwise);
}

Shape Call::ints(std::string_view name) const {
  if (!has(name)) return {};
  const Arg& arg = *find(name);
  if (const auto* one = std::get_if<int64_t>(&arg)) return {*one};
  return std::get<Shape>(arg);
}

std::vector<bool> Call::flags(std::string_view name) const {
  return std::get<std::vector<bool>>(*find(name));
}

size_t Call::dim(std::string_view name, size_t rank, int64_t otherwise) const {
  const int64_t d = integer(name, otherwise);
  return static_cast<size_t>(d < 0 ? d + static_cast<int64_t>(rank) : d);
}

Shape Call::dims(std::string_view name, size_t rank) const {
  Shape out = ints(name);
  for (int64_t& d : out)
    if (d < 0) d += static_cast<int64_t>(rank);
  if (out.empty())
    for (size_t d = 0; d < rank; ++d) out.push_back(static_cast<int64_t>(d));
  return out;
}

std::vector<Array> evaluate(const Call& call) {
  static const Operators all = [] {
    Operators table;
    for (const auto add : {add_elementwise, add_activations, add_reductions, add_shapes,
                           add_products, add_layers, add_losses, add_indexing, add_spatial})
      add(table);
    return table;
  }();
  auto it = all.find(call.op());
  if (it == all.end()) it = all.find(call.op().substr(0, call.op().find('.')));
  if (it == all.end())
    throw std::runtime_error("the interpreter has no operator " + std::string(call.op()));
  return it->second(call);
}

}  // namespace nns::test
