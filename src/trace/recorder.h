// The recorder stands in the operator door while a model is traced: each call becomes a node of the
// Graph, its tensors become values with shapes and dtypes only. Nothing is computed or allocated.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "operators/record.h"
#include "tensor/call.h"
#include "trace/places.h"

namespace c10 {
struct Argument;
struct FunctionSchema;
}  // namespace c10

namespace nns::trace {

// The line of a model that made a call.
struct Site {
  std::string module;
  SourceLoc loc;
  std::string text;  // of the line, trimmed; "" when the file cannot be read
  graph::Context context;
};
// "in module 'h.0.attn' at gpt.lua:31: `local y = x:item()`"
std::string describe(const Site& site);

// Argument of a composite's node that stands for what its body does: another body is another graph.
inline constexpr const char* kBodyHash = "body_hash";

// A plain Lua value as the argument `name` of a composite.
graph::Arg plain_arg(lua_State* L, int at, const std::string& op, const std::string& name);

class Recorder final : public tensor::Interceptor {
 public:
  Recorder(std::string name, bool training);

  // Before the model runs: its inputs, parameters and buffers, in their order.
  std::shared_ptr<tensor::Traced> add_input(const std::string& name, const TensorType& type,
                                            bool requires_grad = false);
  void add_parameter(const std::shared_ptr<tensor::Parameter>& parameter, const std::string& name);
  void add_alias(const std::string& alias, const std::string& name);

  int record(lua_State* L, const tensor::Call& call) override;
  void refuse(lua_State* L, std::string_view what, const char* hint) override;

  // Records a call of a registered composite as one node: arguments of these names from stack index
  // `first` on; pushes its results.
  int record_composite(lua_State* L, const std::string& op, const std::vector<std::string>& names,
                       int first);

  // Value that a tensor which forward returned stands for; counts as its use.
  graph::ValueRef output_of(lua_State* L, const tensor::Box& box);
  const TensorType& type_of(graph::ValueRef value) const { return graph_.value(value).type; }

  // Checks for branches on tensor values, adds buffer updates and returns the finished graph.
  graph::Graph finish(std::vector<graph::Nest> outputs);

  // Where a function that is traced returns: the place of calls whose own frame is gone.
  SourceLoc fallback_place;
  // Where the Python model of an imported program makes the calls to come, in place of a line of
  // Lua; nullptr: no such program runs.
  const Site* origin = nullptr;
  // Region of calls that backward recomputes, or -1.
  int recompute_region = -1;
  int next_region() { return regions_++; }
  // Marks of the model: name, and the node that comes next.
  void add_anchor(std::string name) {
    anchors_.emplace_back(std::move(name), static_cast<int>(graph_.nodes.size()));
  }
  const std::vector<std::pair<std::string, int>>& anchors() const { return anchors_; }
  // Warnings in the order in which they arose, one per site.
  const std::vector<std::string>& warnings() const { return warnings_; }

  Site site_of(lua_State* L);

 private:
  int record_call(lua_State* L, const tensor::Call& call);
  int record_in_place(lua_State* L, const std::string& op, std::vector<NamedArg> args,
                      const std::vector<int>& handles);
  int in_place_value(const std::string& op, const std::string& functional,
                     std::vector<NamedArg>& args);
  int fit(int value, const TensorType& type, const std::string& op, bool casts);
  // Answers a call that asks for a shape only ("aten::size.int"); false if it is another call.
  bool shape_query(lua_State* L, const std::string& op, const tensor::Call& call);
  int push_results(lua_State* L, const c10::FunctionSchema& schema, const std::string& op,
                   const std::vector<NamedArg>& args, const std::vector<int>& handles,
                   const std::vector<int>& values, bool identity);

  int handle_of(const tensor::Box& box);
  int constant_handle(const at::Tensor& tensor);
  Arg operand_arg(const tensor::Operand& operand, const c10::Argument& declared,
                  const std::string& op, int& handle);
  std::shared_ptr<tensor::Traced> wrap(int handle, int value);
  std::shared_ptr<tensor::Traced>& traced_for(int handle);

  int add_value(TensorType type, graph::Role role, bool requires_grad, std::string name,
                std::string data = {});
  // Appends a node at the place in work; `written` are types of its extra outputs.
  std::vector<int> emit(const std::string& op, std::vector<NamedArg> args,
                        const std::vector<TensorType>& written = {});
  int emit_one(const std::string& op, std::vector<NamedArg> args);
  std::vector<TensorType> infer(const std::string& op, const std::vector<NamedArg>& args,
                                const operators::Record* info);
  bool type_requires_grad(int id) const;
  // Under autocast: casts the operands as the record says. A cast of a weight serves all its uses.
  void autocast(const operators::Record& record, std::vector<NamedArg>& args);
  graph::ValueRef cast(graph::ValueRef value, DType to);

  graph::Graph graph_;
  Places places_;
  Site site_;  // of the call in work
  uint64_t serial_;
  std::map<const tensor::Parameter*, int> parameters_;  // handles
  std::map<const c10::TensorImpl*, int> constants_;     // handles
  std::vector<at::Tensor> kept_;  // constants stay alive: identity is by address
  std::vector<std::shared_ptr<tensor::Traced>> traced_;  // one per handle, or null
  std::map<std::pair<std::string, std::string>, int> ordinals_;
  std::map<std::tuple<int, DType, int, bool>, int> casts_;  // of weights → value
  std::vector<bool> consumed_;                              // one per value
  std::vector<std::pair<int, int>> buffers_;                // value id → handle
  std::set<std::string> warned_;
  std::vector<std::string> warnings_;
  int regions_ = 0;
  std::vector<std::pair<std::string, int>> anchors_;
};

}  // namespace nns::trace
