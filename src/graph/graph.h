// Graph: the one-device program of a model as a list of ATen operator calls in program order (SSA).
// Plain data. It has no strides, no devices and no partition; shapes are concrete integers.
//
// Ids count from 0 in order of creation, so the same model gives the same text and the same hash.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/types.h"

namespace nns::graph {

enum class Role { input, parameter, buffer, activation, constant };
std::string_view name_of(Role role);

// A value of the graph. `name` is the logical name of parameters and buffers
// ("transformer.wte.weight"), the field of an input ("x", "batch.y"), else empty.
struct Value {
  int id = 0;
  TensorType type;
  Role role = Role::activation;
  bool requires_grad = false;
  std::string name;
  int producer = -1;  // node id, or -1
  std::string data;   // of a constant: its elements as bytes (row-major, little-endian), else empty
};

struct ValueRef {
  int id = -1;  // -1: no tensor (nil)
  bool operator==(const ValueRef&) const = default;
};
// An enumerated or device argument by its name: "cpu", "contiguous_format", "strided".
struct Symbol {
  std::string name;
  bool operator==(const Symbol&) const = default;
};

// One argument of a call. Reals are kept apart from integers (a schema's Scalar may be either).
using Arg = std::variant<std::monostate, ValueRef, std::vector<ValueRef>, bool, int64_t, double,
                         std::string, std::vector<int64_t>, std::vector<double>, std::vector<bool>,
                         DType, Symbol>;

struct NamedArg {
  std::string name;  // of the schema
  Arg value;
};

// What held where the call was made.
struct Context {
  bool grad_enabled = true;
  std::string autocast;       // "" or a dtype name
  int recompute_region = -1;  // -1: none
  bool operator==(const Context&) const = default;
};

// A call of one operator. `op` is namespace::name.overload ("aten::add.Tensor"; no dot when the
// overload is unnamed: "aten::linear"). `args` are all arguments of the schema, in its order,
// defaults filled in. In-place calls never occur: they are recorded in their functional form.
// `outputs` are the results of the schema (a list result flattened), then, for a call that writes
// to arguments its schema does not mark (batch_norm in training mode: running_mean, running_var),
// the new content of each written argument that is not nil, in argument order.
struct Node {
  int id = 0;
  std::string op;
  std::vector<NamedArg> args;
  std::vector<int> outputs;  // value ids
  std::string module;        // path of the module whose forward made the call: "h.3.attn"
  int ordinal = 0;           // how many calls of `op` in `module` came before
  SourceLoc loc;
  std::string source_text;  // the source line, trimmed
  Context context;

  // Returns the argument with this name, or nullptr.
  const Arg* find(std::string_view name) const;
};

// A nested result or sample: a tensor, a plain value, or a table with ordered string or integer
// keys. Leaves hold value ids (inputs, outputs) or constants.
struct Nest {
  std::variant<std::monostate, ValueRef, bool, double, std::string,
               std::vector<std::pair<std::string, Nest>>>
      node;  // keys of list entries are "1", "2", …
};

struct Graph {
  std::string name;      // of the model: "GPT"
  bool training = true;  // traced in training or in evaluation mode
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<int> inputs;      // value ids, order of first use in the sample's sorted field names
  std::vector<int> parameters;  // value ids in module order (also those not used)
  std::vector<int> buffers;
  std::vector<Nest> outputs;  // what forward returned, in order; outputs[0] is the loss
  // Buffers written during forward: buffer value id → id of the value that holds its new content.
  std::vector<std::pair<int, int>> buffer_updates;
  // Names that are one tensor: alias → the name under which it is stored.
  std::vector<std::pair<std::string, std::string>> aliases;

  const Value& value(ValueRef ref) const { return values.at(static_cast<size_t>(ref.id)); }
};

// Readable text form, one line a node; `locations` adds `-- file:line`.
std::string to_text(const Graph& graph, bool locations = true);
// One argument or nested result in the text form ("[%3, nil]", "2.0") and in the JSON form.
std::string to_text(const Arg& arg);
std::string to_text(const Nest& nest);
std::string to_json(const Arg& arg);
std::string to_json(const Nest& nest);
// JSON form (complete) and back; throws an Error of kind `state` on malformed input.
std::string to_json(const Graph& graph);
Graph from_json(std::string_view text);

// Hash of operators, arguments, shapes, dtypes, names and paths: gates generated code. Source
// places and comments do not count.
uint64_t exact_hash(const Graph& graph);
// Hash of operators and paths without sizes: gates a Plan.
uint64_t structure_hash(const Graph& graph);

// Throws an internal Error that names node and rule if the graph is malformed (use before
// definition, dangling ids, wrong producer, duplicate names, bad ordinal).
void verify(const Graph& graph);
// The first broken rule in words, or nothing.
std::optional<std::string> find_fault(const Graph& graph);

// Ids of the values a node reads, in argument order (nil left out, repeats kept).
std::vector<int> inputs_of(const Node& node);

}  // namespace nns::graph
