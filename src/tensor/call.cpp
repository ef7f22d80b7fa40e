// Runs calls in LibTorch or hands them to the interceptor.
#include "tensor/call.h"

#include "script/state.h"
#include "tensor/arguments.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

std::string shapes_of(const Overload& overload, const Call& call) {
  std::string text;
  const auto add = [&](const std::string& name, const Box* box) {
    if (box != nullptr) text += fmt::format("; {} {}", name, to_string(type_of(*box)));
  };
  for (size_t i = 0; i < call.args.size(); ++i) {
    const std::string& name = overload.args[i].name;
    if (const auto* box = std::get_if<Box*>(&call.args[i])) add(name, *box);
    if (const auto* boxes = std::get_if<std::vector<Box*>>(&call.args[i]))
      for (size_t k = 0; k < boxes->size(); ++k) add(fmt::format("{}[{}]", name, k), (*boxes)[k]);
  }
  return text;
}

[[noreturn]] void fail_call(const Door& door, const Overload& overload, const Call& call,
                            const c10::Error& e) {
  const std::string place =
      door.scope.module().empty() ? "" : fmt::format(" in '{}'", door.scope.module());
  fail(ErrorKind::model, "[tensor.call] {}{}: {}{}", overload.full_name, place, cause_of(e),
       shapes_of(overload, call));
}

c10::IValue value_of(const Operand& operand, const Want& want) {
  if (const auto* value = std::get_if<c10::IValue>(&operand)) return *value;
  if (Box* const* box = std::get_if<Box*>(&operand))
    return *box != nullptr ? c10::IValue(real_of(**box)) : c10::IValue();
  const auto& boxes = std::get<std::vector<Box*>>(operand);
  if (want.optional_element) {
    c10::List<std::optional<at::Tensor>> list;
    for (const Box* box : boxes)
      list.push_back(box != nullptr ? std::optional(real_of(*box)) : std::nullopt);
    return list;
  }
  c10::List<at::Tensor> list;
  list.reserve(boxes.size());
  for (const Box* box : boxes) list.push_back(real_of(*box));
  return list;
}

bool out_of_memory(const c10::Error& e) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&e) != nullptr ||
         std::string_view(e.what_without_backtrace()).find("can't allocate memory") !=
             std::string_view::npos;
}

torch::jit::Stack run(lua_State* L, const Overload& overload, const Call& call) {
  torch::jit::Stack stack;
  const auto fill = [&] {
    stack.clear();
    stack.reserve(call.args.size() + 2);
    for (size_t i = 0; i < call.args.size(); ++i)
      stack.push_back(value_of(call.args[i], overload.args[i]));
  };
  const Door& door = door_of(L);
  for (bool again = false;; again = true) {
    fill();
    try {
      overload.op.callBoxed(stack);
      return stack;
    } catch (const c10::Error& e) {
      // Dead tensors that the collector has not met yet may hold the memory.
      if (again || !out_of_memory(e)) fail_call(door, overload, call, e);
    }
    stack.clear();
    lua_gc(L, LUA_GCCOLLECT, 0);
  }
}

int push_results(lua_State* L, const Overload& overload, torch::jit::Stack results,
                 const std::vector<int>& sources) {
  luaL_checkstack(L, static_cast<int>(results.size()) + 4, "too many results");
  for (size_t i = 0; i < results.size(); ++i) {
    const int arg = i < overload.result_is_arg.size() ? overload.result_is_arg[i] : -1;
    const int source = arg >= 0 && !sources.empty() ? sources[static_cast<size_t>(arg)] : 0;
    if (source > 0)
      lua_pushvalue(L, source);  // in-place: the caller's own tensor
    else
      push_ivalue(L, results[i]);
  }
  return static_cast<int>(results.size());
}

// --- random operators ---------------------------------------------------------------------------

double number_of(const Call& call, size_t index) {
  const auto* value = std::get_if<c10::IValue>(&call.args[index]);
  if (value == nullptr) return 1;
  if (value->isDouble()) return value->toDouble();
  if (value->isBool()) return value->toBool() ? 1 : 0;
  return 1;
}

// Whether these arguments make the operator draw from ATen's hidden generator.
bool draws_hidden(const Overload& overload, const Call& call) {
  for (size_t i = 0; i < overload.args.size(); ++i) {
    const Want& want = overload.args[i];
    const auto* value = std::get_if<c10::IValue>(&call.args[i]);
    if (want.kind == Kind::generator && value != nullptr && !value->isNone()) return false;
    const bool rate = want.name == "p" || want.name == "dropout_p" || want.name == "dropout";
    const bool mode = want.name == "train" || want.name == "training";
    if ((rate && want.kind == Kind::real && number_of(call, i) == 0) ||
        (mode && value != nullptr && value->isBool() && !value->toBool()))
      return false;
  }
  return true;
}

// Our operators that stand for random ones of ATen, and what their arguments are called there.
struct Redirect {
  const char* from;
  const char* to;
  std::vector<std::pair<std::string_view, const char*>> names;  // ours → ATen's
  bool forward_only = false;  // elsewhere nothing tells one draw from the next
};
const Redirect kRedirects[] = {
    {"aten::dropout", "nnscaler::dropout", {}},
    {"aten::scaled_dot_product_attention",
     "nnscaler::attention_dropout",
     {{"q", "query"},
      {"k", "key"},
      {"v", "value"},
      {"mask", "attn_mask"},
      {"p", "dropout_p"},
      {"causal", "is_causal"}}},
    {"aten::randn_like", "nnscaler::normal_like", {{"like", "self"}}, true},
    {"aten::rand_like", "nnscaler::uniform_like", {{"like", "self"}}, true},
    {"aten::bernoulli", "nnscaler::bernoulli", {{"p", "self"}}, true}};

const Overload& redirect(Door& door, const Overload& from, const Redirect& known, const Call& call,
                         Call& out) {
  const Operator* op = find_operator(known.to);
  NNS_CHECK(op != nullptr && op->overloads.size() == 1, "operator {} is not registered", known.to);
  const Overload& target = op->overloads[0];
  const RandomContext& random = door.scope.random;
  out.op = &target.op;
  for (const Want& want : target.args) {
    std::string_view name = want.name;
    for (const auto& [ours, theirs] : known.names)
      if (ours == want.name) name = theirs;
    size_t index = 0;
    if (want.name == "key")
      out.args.emplace_back(c10::IValue(door.scope.next_random_key(from.full_name)));
    else if (want.name == "seed")
      out.args.emplace_back(c10::IValue(random.seed));
    else if (want.name == "step")
      out.args.emplace_back(c10::IValue(random.step));
    else if (want.name == "micro")
      out.args.emplace_back(c10::IValue(random.micro));
    else if (from.find(name, &index) != nullptr)
      out.args.push_back(call.args[index]);
    else if (want.has_default || want.optional)
      out.args.emplace_back(want.fallback);
    else
      fail(ErrorKind::internal, "[tensor.random] {} has no argument '{}' for {}", from.full_name,
           want.name, known.to);
  }
  return target;
}

[[noreturn]] void refuse_random(const Overload& overload) {
  throw Error(
      ErrorKind::model,
      fmt::format("[tensor.random] {} would draw from LibTorch's hidden generator; expected an "
                  "explicit one",
                  overload.full_name),
      "pass { generator = T.generator(seed) }; in a model's forward use F.randn_like, F.rand_like, "
      "F.normal, F.bernoulli or F.dropout, whose draws follow from seed, module path and step");
}

int run_resolved(lua_State* L, Door& door, const Overload& overload, const Call& call,
                 const std::vector<int>& sources) {
  if (overload.random) {
    const bool draws = draws_hidden(overload, call);
    for (const Redirect& known : kRedirects)
      if (overload.full_name == known.from &&
          (!known.forward_only || (draws && door.scope.module_depth() > 0))) {
        if (!draws) {  // counts all the same: a graph counts it too
          door.scope.next_ordinal(overload.full_name);
          return push_results(L, overload, run(L, overload, call), sources);
        }
        Call ours;
        const Overload& target = redirect(door, overload, known, call, ours);
        return push_results(L, target, run(L, target, ours), {});
      }
    if (draws) refuse_random(overload);
  }
  return push_results(L, overload, run(L, overload, call), sources);
}

}  // namespace

std::string cause_of(const c10::Error& e) {
  std::string text = e.what_without_backtrace();
  for (const char* end : {". This could be because", "\nException raised from", "\n\n"})
    if (const size_t at = text.find(end); at != std::string::npos) text.resize(at);
  for (char& c : text)
    if (c == '\n') c = ' ';
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

int call_with(lua_State* L, Door& door, const Operator& op) {
  Frame frame(L, door);
  Call call;
  const Overload& overload = resolve(frame, op, call);
  if (door.interceptor == nullptr) return run_resolved(L, door, overload, call, frame.sources);
  const int n = door.interceptor->record(L, call);
  const int self = n == 1 ? overload.result_is_arg[0] : -1;
  if (self >= 0 && frame.sources[static_cast<size_t>(self)] > 0)
    lua_pushvalue(L, frame.sources[static_cast<size_t>(self)]);
  return n;
}

int recover(lua_State* L, Door& door, const Operator& op, const c10::Error& e) {
  if (out_of_memory(e)) return call_with(L, door, op);  // collects and tries again
  Frame frame(L, door);
  Call call;
  const Overload& overload = resolve(frame, op, call);
  fail_call(door, overload, call, e);
}

int call_operator(lua_State* L, std::string_view name) {
  const Operator* op = find_operator(name);
  if (op == nullptr) fail_unknown(name);
  return call_with(L, door_of(L), *op);
}

int invoke(lua_State* L, const Call& call) {
  const c10::OperatorName& name = call.op->operator_name();
  const Operator* op = find_operator(name.name + "." +
                                     (name.overload_name.empty() ? "default" : name.overload_name));
  NNS_CHECK(op != nullptr, "no operator {}", name.name);
  return run_resolved(L, door_of(L), op->overloads[0], call, {});
}

void fail_unknown(std::string_view name) {
  throw Error(ErrorKind::model, fmt::format("[tensor.call] there is no operator '{}'", name),
              "names are ATen's: ops.aten.matmul, ops.aten['add.Tensor']");
}

Interceptor* set_interceptor(lua_State* L, Interceptor* interceptor) {
  return std::exchange(door_of(L).interceptor, interceptor);
}

Interceptor* get_interceptor(lua_State* L) {
  return door_of(L).interceptor;
}

void push_ivalue(lua_State* L, const c10::IValue& value) {
  if (value.isTensor()) return push(L, value.toTensor());
  if (value.isInt()) {  // the largest integer means "to the end"
    if (value.toInt() == std::numeric_limits<int64_t>::max()) return lua_pushnil(L);
    return lua_pushnumber(L, static_cast<double>(value.toInt()));
  }
  if (value.isDouble()) return lua_pushnumber(L, value.toDouble());
  if (value.isBool()) return lua_pushboolean(L, value.toBool());
  if (value.isString()) return script::push_string(L, value.toStringRef());
  if (value.isNone()) return lua_pushnil(L);
  if (value.isDevice()) return script::push_string(L, value.toDevice().str());
  if (value.isSymInt()) return push_ivalue(L, value.toSymInt().guard_int(__FILE__, __LINE__));
  if (value.isList() || value.isTuple()) {
    const auto items =
        value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec();
    lua_createtable(L, static_cast<int>(items.size()), 0);
    for (size_t i = 0; i < items.size(); ++i) {
      push_ivalue(L, items[i]);
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
    return;
  }
  if (value.isScalar()) return push_ivalue(L, c10::IValue(value.toScalar()));
  fail(ErrorKind::model, "[tensor.call] a result of type {} has no Lua form", value.tagKind());
}

}  // namespace nns::tensor
