#include "solve/constraint.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "job/parse.h"

namespace nns::solve {
namespace {

using job::Value;

constexpr const char* kDims = "operand and dimension of a cut, as ['0,0', '1,0']";

[[noreturn]] void refuse(const Value& value, const std::string& key, const char* expected) {
  fail(ErrorKind::usage, "[solve.constraint] {}: '{}' is {}; expected {}", to_string(value.mark),
       key, job::describe(value), expected);
}

std::string text_of(const Value& value, const std::string& key) {
  if (!value.is(Value::Kind::text)) refuse(value, key, "a text");
  return value.text;
}

std::vector<std::pair<int, int>> dims_of(const Value& value, const std::string& key) {
  if (!value.is(Value::Kind::list)) refuse(value, key, kDims);
  std::vector<std::pair<int, int>> out;
  for (const Value& item : value.items) {
    const std::string& text = item.text;
    const char* const end = text.data() + text.size();
    int input = -1, dim = -1;
    const auto first = std::from_chars(text.data(), end, input);
    const char* next = first.ptr;
    if (next != end && *next == ',') ++next;
    while (next != end && *next == ' ') ++next;
    const auto second = std::from_chars(next, end, dim);
    if (first.ec != std::errc() || second.ec != std::errc() || second.ptr != end || input < 0 ||
        dim < 0)
      refuse(item, key, kDims);
    out.emplace_back(input, dim);
  }
  return out;
}

// The name of an operator without its namespace: "linear" of "torch.nn.functional.linear".
std::string short_name(const std::string& name) {
  const auto colons = name.rfind("::");
  return colons == std::string::npos ? name.substr(name.rfind('.') + 1) : name.substr(colons + 2);
}

bool matches(const Constraint& constraint, const graph::Node& node) {
  if (node.module.find(constraint.module) == std::string::npos) return false;
  if (constraint.op.empty() || constraint.op == node.op) return true;
  const std::string name = short_name(node.op);  // "sum.dim_IntList"
  return constraint.op.find("::") == std::string::npos &&
         (short_name(constraint.op) == name.substr(0, name.find('.')) || constraint.op == name);
}

}  // namespace

std::string to_string(const Constraint& constraint) {
  return fmt::format("of '{}' in '{}'{}", constraint.op.empty() ? "*" : constraint.op,
                     constraint.module.empty() ? "*" : constraint.module,
                     constraint.place.empty() ? "" : fmt::format(" ({})", constraint.place));
}

std::vector<Constraint> parse_constraints(std::string_view text, const std::string& file) {
  const Value root = job::parse_document(text, file);
  if (!root.is(Value::Kind::list)) refuse(root, "the file", "a list of constraints");
  const std::vector<std::string> names = {"allowed_partition_dims", "name", "parent_module",
                                          "replica_allowed"};
  std::vector<Constraint> out;
  for (const Value& item : root.items) {
    if (!item.is(Value::Kind::map))
      refuse(item, "a constraint",
             "a table with name, parent_module, "
             "allowed_partition_dims, replica_allowed");
    Constraint constraint;
    constraint.place = to_string(item.mark);
    for (const job::Field& field : item.fields) {
      if (field.key == "name") {
        constraint.op = text_of(field.value, field.key);
      } else if (field.key == "parent_module") {
        constraint.module = text_of(field.value, field.key);
      } else if (field.key == "allowed_partition_dims") {
        constraint.allowed = dims_of(field.value, field.key);
      } else if (field.key == "replica_allowed") {
        if (!field.value.is(Value::Kind::boolean)) refuse(field.value, field.key, "true or false");
        constraint.replica = field.value.boolean;
      } else {
        const std::string near = job::nearest(field.key, names);
        throw Error(ErrorKind::usage,
                    fmt::format("[solve.constraint] {}: no key '{}'; expected name, parent_module, "
                                "allowed_partition_dims, replica_allowed",
                                to_string(field.value.mark), field.key),
                    near.empty() ? "" : fmt::format("did you mean '{}'?", near));
      }
    }
    out.push_back(std::move(constraint));
  }
  return out;
}

std::vector<int> match(const std::vector<Constraint>& constraints, const graph::Graph& graph) {
  std::vector<int> out(graph.nodes.size(), -1);
  std::vector<bool> used(constraints.size(), false);
  for (const graph::Node& node : graph.nodes)
    for (size_t i = 0; i < constraints.size(); ++i) {
      if (!matches(constraints[i], node)) continue;
      used[i] = true;
      int& known = out[static_cast<size_t>(node.id)];
      if (known < 0 ||
          constraints[static_cast<size_t>(known)].module.size() < constraints[i].module.size())
        known = static_cast<int>(i);
    }
  for (size_t i = 0; i < constraints.size(); ++i)
    if (!used[i])
      throw Error(ErrorKind::usage,
                  fmt::format("[solve.constraint] the constraint {} matches no call",
                              to_string(constraints[i])),
                  "'nnscaler plan' shows operators and modules of a job");
  return out;
}

}  // namespace nns::solve
