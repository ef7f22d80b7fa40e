// Recording of calls: arguments become values and constants, shapes come from the operator table.
#include "trace/recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <atomic>

#include "base/error.h"
#include "base/log.h"
#include "operators/record.h"
#include "script/state.h"
#include "tensor/door.h"
#include "tensor/scope.h"
#include "trace/convert.h"
#include "trace/rules.h"
#include "trace/shapes.h"
#include "trace/source.h"

namespace nns::trace {
namespace {

using graph::Role;
using graph::ValueRef;
using tensor::Box;
using tensor::Traced;

constexpr int64_t kMaxConstant = 4096;  // elements of a tensor that a graph holds itself

uint64_t next_serial() {
  static std::atomic<uint64_t> serial{0};
  return ++serial;
}

}  // namespace

std::string describe(const Site& site) {
  std::string out = site.module.empty() ? "" : fmt::format("in module '{}' ", site.module);
  out += site.loc.file.empty() ? "at an unknown line" : fmt::format("at {}", short_form(site.loc));
  return site.text.empty() ? out : fmt::format("{}: `{}`", out, site.text);
}

// A plain Lua value as an argument of a composite.
Arg plain_arg(lua_State* L, int at, const std::string& op, const std::string& name) {
  switch (lua_type(L, at)) {
    case LUA_TNONE:
    case LUA_TNIL:
      return {};
    case LUA_TBOOLEAN:
      return lua_toboolean(L, at) != 0;
    case LUA_TNUMBER: {
      const double x = lua_tonumber(L, at);
      if (x == static_cast<double>(static_cast<int64_t>(x))) return static_cast<int64_t>(x);
      return x;
    }
    case LUA_TSTRING:
      return script::check_string(L, at);
    case LUA_TTABLE:
      return script::check_ints(L, at);
    default:
      fail(ErrorKind::model,
           "[register_op] {}: argument '{}' is a {}; expected a tensor, a plain value or a list of "
           "integers",
           op, name, luaL_typename(L, at));
  }
}

Recorder::Recorder(std::string name, bool training)
    : places_([this](const std::string& op,
                     std::vector<NamedArg> args) { return emit_one(op, std::move(args)); },
              [this](int value) -> const TensorType& { return type_of({value}); }),
      serial_(next_serial()) {
  graph_.name = std::move(name);
  graph_.training = training;
}

// --- before the model runs
// --------------------------------------------------------------------------

int Recorder::add_value(TensorType type, Role role, bool requires_grad, std::string name,
                        std::string data) {
  const int id = static_cast<int>(graph_.values.size());
  graph_.values.push_back(
      {id, std::move(type), role, requires_grad, std::move(name), -1, std::move(data)});
  consumed_.push_back(false);
  return id;
}

std::shared_ptr<Traced> Recorder::wrap(int handle, int value) {
  const graph::Value& v = graph_.value({value});
  auto& traced = traced_for(handle);
  traced = std::make_shared<Traced>(Traced{serial_, handle, v.type, v.requires_grad});
  return traced;
}

std::shared_ptr<Traced> Recorder::add_input(const std::string& name, const TensorType& type,
                                            bool requires_grad) {
  const int id = add_value(type, Role::input, requires_grad, name);
  graph_.inputs.push_back(id);
  return wrap(places_.add(StorageKind::input, name, id, false), id);
}

void Recorder::add_parameter(const std::shared_ptr<tensor::Parameter>& parameter,
                             const std::string& name) {
  const bool buffer = parameter->is_buffer;
  const int id = add_value(parameter->type, buffer ? Role::buffer : Role::parameter,
                           !buffer && parameter->requires_grad, name);
  (buffer ? graph_.buffers : graph_.parameters).push_back(id);
  const int handle =
      places_.add(buffer ? StorageKind::buffer : StorageKind::parameter, name, id, true);
  parameters_[parameter.get()] = handle;
  if (buffer) buffers_.emplace_back(id, handle);
}

void Recorder::add_alias(const std::string& alias, const std::string& name) {
  graph_.aliases.emplace_back(alias, name);
}

// --- tensors of the script
// --------------------------------------------------------------------------

int Recorder::handle_of(const Box& box) {
  if (box.released) fail(ErrorKind::model, "[trace.tensor] a tensor is used after it was released");
  if (box.traced) {
    if (box.traced->trace != serial_)
      throw Error(
          ErrorKind::model, "[trace.tensor] a tensor of an earlier trace is used",
          "forward must not keep tensors in the module or in upvalues; keep state in buffers");
    return box.traced->handle;
  }
  if (box.parameter) {
    const auto found = parameters_.find(box.parameter.get());
    if (found == parameters_.end())
      throw Error(ErrorKind::model,
                  fmt::format("[trace.parameter] {} '{}' ({}) does not belong to the model",
                              box.parameter->is_buffer ? "buffer" : "parameter",
                              box.parameter->path, to_string(box.parameter->type)),
                  "assign it to a field of the module that uses it");
    return found->second;
  }
  return constant_handle(box.real);
}

int Recorder::constant_handle(const at::Tensor& tensor) {
  const auto found = constants_.find(tensor.unsafeGetTensorImpl());
  if (found != constants_.end()) return found->second;
  const TensorType type = tensor::type_of(tensor);
  if (tensor.numel() > kMaxConstant)
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.constant] a tensor {} made outside the model is used; expected at "
                    "most {} elements",
                    to_string(type), kMaxConstant),
        "keep it in the module: self:register_buffer(name, …)");
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  const int id = add_value(type, Role::constant, false, "",
                           std::string(static_cast<const char*>(dense.const_data_ptr()),
                                       static_cast<size_t>(bytes_of(type))));
  const int handle = places_.add(StorageKind::constant, "", id, tensor.is_contiguous());
  constants_[tensor.unsafeGetTensorImpl()] = handle;
  kept_.push_back(tensor);
  return handle;
}

Site Recorder::site_of(lua_State* L) {
  Site site;
  if (origin != nullptr) {
    site = *origin;
  } else {
    site.module = tensor::scope_of(L).module();
    site.loc = model_place(L, fallback_place);
    site.text = source_line(site.loc.file, site.loc.line);
  }
  site.context.grad_enabled = c10::GradMode::is_enabled();
  site.context.recompute_region = recompute_region;
  return site;
}

void Recorder::refuse(lua_State* L, std::string_view what, const char* hint) {
  throw Error(
      ErrorKind::model,
      fmt::format("[trace.data] {} needs the data of a tensor, which a model under trace does "
                  "not have; {}",
                  what, describe(site_of(L))),
      hint);
}

// --- nodes
// ------------------------------------------------------------------------------------------

std::vector<TensorType> Recorder::infer(const std::string& op, const std::vector<NamedArg>& args,
                                        const operators::Record* info) {
  if (info != nullptr)
    return operators::infer(operators::CallView(
        op, args, [this](int id) -> const TensorType& { return type_of({id}); }));
  std::string why;
  auto types = infer_by_libtorch(op, args, graph_.values, why);
  if (!types)
    throw Error(ErrorKind::model,
                fmt::format("[trace.shape] which shapes {} returns is not known: it is not in the "
                            "operator table, and LibTorch says: {}",
                            op, why),
                "write it with other operators, or declare its shapes: nnscaler.register_op(name, "
                "{ infer = … })");
  if (warned_.insert(op + describe(site_)).second)
    warnings_.push_back(
        fmt::format("{} is not in the operator table: it will be replicated, never split; {}", op,
                    describe(site_)));
  return *types;
}

std::vector<int> Recorder::emit(const std::string& op, std::vector<NamedArg> args,
                                const std::vector<TensorType>& written) {
  const operators::Record* info = operators::find(op);
  std::vector<TensorType> types = infer(op, args, info);
  const size_t results = types.size();
  types.insert(types.end(), written.begin(), written.end());
  graph::Node node;
  node.id = static_cast<int>(graph_.nodes.size());
  node.op = op;
  node.args = std::move(args);
  node.module = site_.module;
  node.ordinal = ordinals_[{site_.module, op}]++;
  node.loc = site_.loc;
  node.source_text = site_.text;
  node.context = site_.context;
  bool differentiable = false;
  for (int id : graph::inputs_of(node)) {
    consumed_[static_cast<size_t>(id)] = true;
    differentiable = differentiable || type_requires_grad(id);
  }
  differentiable =
      differentiable && site_.context.grad_enabled && (info == nullptr || !info->constant);
  for (size_t i = 0; i < types.size(); ++i) {
    const bool grad = differentiable && i < results &&
                      (is_floating(types[i].dtype) || is_complex(types[i].dtype));
    const int id = add_value(types[i], Role::activation, grad, "");
    graph_.values.back().producer = node.id;
    consumed_.back() = origin != nullptr;  // export has seen all branches
    node.outputs.push_back(id);
  }
  std::vector<int> outputs = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return outputs;
}

int Recorder::emit_one(const std::string& op, std::vector<NamedArg> args) {
  return emit(op, std::move(args)).front();
}

bool Recorder::type_requires_grad(int id) const {
  return graph_.value({id}).requires_grad;
}

int Recorder::record(lua_State* L, const tensor::Call& call) {
  site_ = site_of(L);
  try {
    return record_call(L, call);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}; {}", e.message(), describe(site_)), e.hint(),
                e.traceback());
  }
}

int Recorder::record_composite(lua_State* L, const std::string& op,
                               const std::vector<std::string>& names, int first) {
  site_ = site_of(L);
  try {
    std::vector<NamedArg> args;
    for (size_t i = 0; i < names.size(); ++i) {
      const int at = first + static_cast<int>(i);
      Arg value;
      if (const Box* box = tensor::test_box(L, at)) {
        value = ValueRef{places_.read(handle_of(*box))};
      } else {
        value = plain_arg(L, at, op, names[i]);
      }
      args.push_back({names[i], std::move(value)});
    }
    const operators::Record& record = *operators::find(op);
    autocast(record, args);
    const operators::CallView call(op, args,
                                   [this](int id) -> const TensorType& { return type_of({id}); });
    std::string hash = hex(graph::exact_hash(*record.body(call)));
    if (record.backward)
      hash += hex(graph::exact_hash(*record.backward(call, operators::infer(call))));
    args.push_back({kBodyHash, std::move(hash)});
    const std::vector<int> values = emit(op, std::move(args));
    for (int value : values)
      tensor::push(L, wrap(places_.add(StorageKind::fresh, "", value, false), value));
    return static_cast<int>(values.size());
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}; {}", e.message(), describe(site_)), e.hint(),
                e.traceback());
  }
}

Arg Recorder::operand_arg(const tensor::Operand& operand, const c10::Argument& declared,
                          const std::string& op, int& handle) {
  if (const auto* value = std::get_if<c10::IValue>(&operand)) {
    if (value->isTensor() && value->toTensor().defined() &&
        !value->toTensor().unsafeGetTensorImpl()->is_wrapped_number())
      return ValueRef{places_.read(constant_handle(value->toTensor()))};
    return to_arg(*value, declared, op);
  }
  if (const auto* box = std::get_if<Box*>(&operand)) {
    if (*box == nullptr) return ValueRef{};
    handle = handle_of(**box);
    return ValueRef{places_.read(handle)};
  }
  std::vector<ValueRef> list;
  for (Box* box : std::get<std::vector<Box*>>(operand))
    list.push_back(box == nullptr ? ValueRef{} : ValueRef{places_.read(handle_of(*box))});
  return list;
}

int Recorder::record_call(lua_State* L, const tensor::Call& call) {
  const c10::FunctionSchema& schema = call.op->schema();
  const std::string op = tensor::full_name(*call.op);
  refuse_data_reader(op);
  if (shape_query(L, op, call)) return 1;

  std::vector<NamedArg> args;
  std::vector<int> handles;  // of the arguments that are one tensor, else -1
  for (size_t i = 0; i < call.args.size(); ++i) {
    int handle = -1;
    Arg arg = operand_arg(call.args[i], schema.arguments()[i], op, handle);
    args.push_back({schema.arguments()[i].name(), std::move(arg)});
    handles.push_back(handle);
  }
  const auto type = [this](int id) -> const TensorType& { return type_of({id}); };
  refuse_data_dependent(operators::CallView(op, args, type));
  const operators::Record* info = operators::find(op);
  refuse_random(op,
                info != nullptr ? info->random : call.op->hasTag(at::Tag::nondeterministic_seeded));

  for (const c10::Argument& argument : schema.arguments())
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite())
      return record_in_place(L, op, std::move(args), handles);

  // What the call writes though its schema does not say so.
  std::vector<int> written;
  std::vector<TensorType> written_types;
  if (info != nullptr && writes_statistics(args))
    for (size_t i = 0; i < args.size(); ++i)
      for (const std::string& name : info->mutates)
        if (args[i].name == name && handles[i] >= 0) {
          places_.check_writable(handles[i], op);
          written.push_back(handles[i]);
          written_types.push_back(type_of(std::get<ValueRef>(args[i].value)));
        }

  if (info != nullptr) autocast(*info, args);
  const bool identity =
      info != nullptr && operators::is_identity(operators::CallView(op, args, type));
  std::string recorded = op;
  std::vector<NamedArg> recorded_args = args;
  forget_strides(recorded, recorded_args, type);
  const std::vector<int> values = emit(recorded, std::move(recorded_args), written_types);
  const size_t results = values.size() - written.size();
  for (size_t i = 0; i < written.size(); ++i)
    places_.write(written[i], values[results + i], describe(site_));
  return push_results(
      L, schema, op, args, handles,
      std::vector<int>(values.begin(), values.begin() + static_cast<int64_t>(results)), identity);
}

int Recorder::push_results(lua_State* L, const c10::FunctionSchema& schema, const std::string& op,
                           const std::vector<NamedArg>& args, const std::vector<int>& handles,
                           const std::vector<int>& values, bool identity) {
  int source = -1;  // the first tensor, whose memory a view shares
  for (size_t i = 0; i < handles.size() && source < 0; ++i) source = handles[i];
  bool dense = true;  // all tensors read are known to be contiguous
  for (int handle : handles) dense = dense && (handle < 0 || places_.contiguous(handle));
  std::vector<TensorType> types;
  for (int id : values) types.push_back(type_of({id}));

  const auto handle_for = [&](size_t k, bool marked) {
    Aliasing aliasing;
    if (source >= 0) {
      const int before = places_.read(source);
      aliasing = aliasing_of(op, args, k, type_of({before}), types, places_.contiguous(source),
                             identity, marked);
    }
    const bool contiguous = keeps_contiguous(op, args, dense, source < 0);
    if (aliasing.kind == Aliasing::Kind::view)
      return places_.add_view(source, std::move(aliasing.step), values[k],
                              contiguous && places_.contiguous(source));
    const int handle = places_.add(StorageKind::fresh, "", values[k], contiguous);
    if (aliasing.kind == Aliasing::Kind::maybe) places_.may_share(source, handle);
    return handle;
  };

  size_t k = 0;
  const auto& returns = schema.returns();
  for (size_t r = 0; r < returns.size(); ++r) {
    const bool marked = returns[r].alias_info() != nullptr;
    if (returns[r].type()->kind() == c10::TypeKind::TensorType) {
      tensor::push(L, wrap(handle_for(k, marked), values[k]));
      ++k;
      continue;
    }
    const size_t n = values.size() - k - (returns.size() - 1 - r);
    lua_createtable(L, static_cast<int>(n), 0);
    for (size_t i = 0; i < n; ++i, ++k) {
      tensor::push(L, wrap(handle_for(k, marked), values[k]));
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
  }
  return static_cast<int>(returns.size());
}

bool Recorder::shape_query(lua_State* L, const std::string& op, const tensor::Call& call) {
  const operators::Record* record = operators::find(op);
  if (record == nullptr || record->answer != operators::Answer::shape) return false;
  if (call.args.empty() || !std::holds_alternative<Box*>(call.args[0])) return false;
  const Box* box = std::get<Box*>(call.args[0]);
  if (box == nullptr) return false;
  const TensorType type = tensor::type_of(*box);
  const auto& declared = call.op->schema().arguments();
  std::vector<NamedArg> args = {{declared[0].name(), ValueRef{0}}};
  for (size_t i = 1; i < call.args.size(); ++i)
    args.push_back(
        {declared[i].name(), to_arg(std::get<c10::IValue>(call.args[i]), declared[i], op)});
  const Arg answer = record->ask(
      operators::CallView(op, args, [&type](int) -> const TensorType& { return type; }));
  if (const auto* shape = std::get_if<Shape>(&answer))
    script::push_ints(L, *shape);
  else if (const auto* number = std::get_if<int64_t>(&answer))
    lua_pushnumber(L, static_cast<double>(*number));
  else
    lua_pushboolean(L, std::get<bool>(answer));
  return true;
}

std::shared_ptr<Traced>& Recorder::traced_for(int handle) {
  if (traced_.size() <= static_cast<size_t>(handle))
    traced_.resize(static_cast<size_t>(handle) + 1);
  return traced_[static_cast<size_t>(handle)];
}

// --- after the model ran
// ----------------------------------------------------------------------------

ValueRef Recorder::output_of(lua_State* L, const Box& box) {
  site_ = site_of(L);
  const int value = places_.read(handle_of(box));
  consumed_[static_cast<size_t>(value)] = true;
  return {value};
}

graph::Graph Recorder::finish(std::vector<graph::Nest> outputs) {
  graph_.outputs = std::move(outputs);
  for (const auto& [id, handle] : buffers_)
    if (places_.written(handle)) {
      const int value = places_.read(handle);
      consumed_[static_cast<size_t>(value)] = true;
      graph_.buffer_updates.emplace_back(id, value);
    }
  // Lua runs no metamethod for `if t` and `t == 0`: their only trace is a result that is not used.
  for (const graph::Node& node : graph_.nodes) {
    bool suspicious = false, used = graph::inputs_of(node).empty();
    for (int id : node.outputs) {
      const TensorType& type = graph_.value({id}).type;
      suspicious = suspicious || type.dtype == DType::boolean || type.shape.empty();
      used = used || consumed_[static_cast<size_t>(id)];
    }
    if (suspicious && !used && !plainly_no_branch(node.loc.file, node.loc.line))
      throw Error(
          ErrorKind::model,
          fmt::format("[trace.branch] nothing uses {} that {} makes; {}",
                      to_string(graph_.value({node.outputs[0]}).type), node.op,
                      describe({node.module, node.loc, node.source_text, node.context})),
          "a branch on a tensor (`if t`, `t == 0`) sees no data while a model is traced: select "
          "with `where`; if it is not a branch, compute it only where it is returned");
  }
  graph::verify(graph_);
  return std::move(graph_);
}

}  // namespace nns::trace
