#include "trace/import/replay.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <lua.hpp>
#include <utility>

#include "base/error.h"
#include "script/state.h"
#include "tensor/arguments.h"
#include "tensor/call.h"
#include "tensor/door.h"
#include "tensor/operators.h"
#include "tensor/scope.h"
#include "trace/import/functions.h"
#include "trace/recorder.h"

namespace nns::trace::import {
namespace {

using c10::IValue;
using graph::Symbol;
using tensor::Operand;
using tensor::Overload;
using tensor::Want;
using ArgKind = tensor::Kind;

constexpr int kDeepest = 50;  // sub-graphs in sub-graphs

at::Tensor wrapped(const at::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// The door and the recorder know where in the Python model the calls are while this lives.
class Place {
 public:
  Place(lua_State* L, Recorder* recorder, const Site& site)
      : L_(L),
        recorder_(recorder),
        depth_(tensor::scope_of(L).module_depth()),
        top_(lua_gettop(L)),
        before_(recorder != nullptr ? std::exchange(recorder->origin, &site) : nullptr) {
    tensor::scope_of(L).push_module(site.module);
  }
  ~Place() {
    if (recorder_ != nullptr) recorder_->origin = before_;
    tensor::scope_of(L_).reset_modules(depth_);
    lua_settop(L_, top_);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  lua_State* L_;
  Recorder* recorder_;
  int depth_, top_;
  const Site* before_;
};

class Replay {
 public:
  Replay(lua_State* L, std::string path, std::optional<Widening> widening)
      : L_(L),
        recorder_(dynamic_cast<Recorder*>(tensor::get_interceptor(L))),
        path_(std::move(path)),
        widening_(widening) {}

  // [inputs at `inputs`] → [table of outputs]
  void run(const Body& body, int inputs, int depth) {
    if (depth > kDeepest)
      fail(ErrorKind::model, "[import.operator] sub-graphs are nested more than {} deep", kDeepest);
    luaL_checkstack(L_, 16, "program nested too deeply");
    Frame frame{body, depth};
    lua_createtable(L_, static_cast<int>(body.slots.size()), 0);
    frame.values = lua_gettop(L_);
    for (size_t i = 0; i < body.inputs.size(); ++i) {
      if (body.inputs[i] < 0) continue;
      lua_rawgeti(L_, inputs, static_cast<int>(i + 1));
      store(frame, body.inputs[i]);
    }
    for (const Step& step : body.steps) at_place(frame, step);
    push_list(frame, body.outputs);
    lua_remove(L_, frame.values);
  }

 private:
  struct Frame {
    const Body& body;
    int depth = 0;
    int values = 0;  // stack index of the table of values, from 1
  };

  // --- values ---------------------------------------------------------------------------------

  void store(const Frame& frame, int slot) {  // [value] → []
    if (slot < 0) return lua_pop(L_, 1);
    lua_rawseti(L_, frame.values, slot + 1);
  }
  void push_slot(const Frame& frame, const Slot& slot) {
    lua_rawgeti(L_, frame.values, slot.index + 1);
  }
  void push_list(const Frame& frame, const std::vector<Term>& terms) {
    lua_createtable(L_, static_cast<int>(terms.size()), 0);
    for (size_t i = 0; i < terms.size(); ++i) {
      push(frame, terms[i]);
      lua_rawseti(L_, -2, static_cast<int>(i + 1));
    }
  }
  void push(const Frame& frame, const Term& term) {
    if (const auto* slot = std::get_if<Slot>(&term.value)) return push_slot(frame, *slot);
    if (const auto* flag = std::get_if<bool>(&term.value)) return lua_pushboolean(L_, *flag);
    if (const auto* whole = std::get_if<int64_t>(&term.value))
      return lua_pushnumber(L_, static_cast<double>(*whole));
    if (const auto* real = std::get_if<double>(&term.value)) return lua_pushnumber(L_, *real);
    if (const auto* text = std::get_if<std::string>(&term.value))
      return script::push_string(L_, *text);
    if (const auto* list = std::get_if<std::vector<Term>>(&term.value))
      return push_list(frame, *list);
    lua_pushnil(L_);
  }

  // The tensor of a slot, which the table of values keeps alive; nullptr: none.
  tensor::Box* box(const Frame& frame, const Slot& slot) {
    push_slot(frame, slot);
    tensor::Box* found = tensor::test_box(L_, -1);
    lua_pop(L_, 1);
    return found;
  }
  // A number, or nothing where the term is a tensor or something else.
  std::optional<at::Scalar> number(const Frame& frame, const Term& term) {
    if (const auto* whole = std::get_if<int64_t>(&term.value)) return at::Scalar(*whole);
    if (const auto* real = std::get_if<double>(&term.value)) return at::Scalar(*real);
    if (const auto* flag = std::get_if<bool>(&term.value)) return at::Scalar(*flag);
    const auto* slot = std::get_if<Slot>(&term.value);
    if (slot == nullptr) return std::nullopt;
    push_slot(frame, *slot);
    std::optional<at::Scalar> found;
    if (lua_isboolean(L_, -1)) {
      found = at::Scalar(lua_toboolean(L_, -1) != 0);
    } else if (lua_isnumber(L_, -1)) {
      const double x = lua_tonumber(L_, -1);
      if (!(std::fabs(x) < 0x1p53)) fail(ErrorKind::model, "[import.number] a size is {}", x);
      const bool real = frame.body.slots[static_cast<size_t>(slot->index)] == Kind::real;
      found = real ? at::Scalar(x) : at::Scalar(static_cast<int64_t>(x));
    }
    lua_pop(L_, 1);
    return found;
  }

  // --- arguments of operators -----------------------------------------------------------------

  [[noreturn]] void misfit(const Want& want) {
    fail(ErrorKind::model, "[import.argument] argument '{}' is not {}", want.name, want.describe());
  }

  IValue plain(const Frame& frame, const Term& term, const Want& want) {
    switch (want.kind) {
      case ArgKind::dtype:
        if (const auto* dtype = std::get_if<DType>(&term.value)) {
          const bool wide = widening_ && *dtype == widening_->from;
          return IValue(tensor::to_torch(wide ? widening_->to : *dtype));
        }
        misfit(want);
      case ArgKind::device:  // a program stays where its model is
        if (want.optional) return {};
        return IValue(c10::Device(c10::DeviceType::CPU));
      case ArgKind::layout:
      case ArgKind::memory_format:
        if (const auto* symbol = std::get_if<Symbol>(&term.value)) {
          if (want.kind == ArgKind::layout) return IValue(c10::kStrided);
          return IValue(
              static_cast<c10::MemoryFormat>(tensor::memory_format_from_name(symbol->name)));
        }
        misfit(want);
      case ArgKind::string:
        if (const auto* text = std::get_if<std::string>(&term.value)) return IValue(*text);
        misfit(want);
      default:
        break;
    }
    const auto value = number(frame, term);
    if (!value) misfit(want);
    switch (want.kind) {
      case ArgKind::scalar:
        return IValue(*value);
      case ArgKind::integer:
        if (value->isFloatingPoint()) misfit(want);
        return IValue(value->toLong());
      case ArgKind::real:
        return IValue(value->toDouble());
      case ArgKind::boolean:
        return IValue(value->toBool());
      default:
        misfit(want);
    }
  }

  Operand one(const Frame& frame, const Term& term, const Want& want) {
    if (want.kind != ArgKind::tensor) return plain(frame, term, want);
    if (const auto* slot = std::get_if<Slot>(&term.value))
      if (tensor::Box* found = box(frame, *slot)) return found;
    const auto value = number(frame, term);
    if (!value) misfit(want);
    return IValue(wrapped(*value));
  }

  template <class T, class F>
  IValue typed(const std::vector<IValue>& items, F get) {
    c10::List<T> list;
    for (const IValue& item : items) list.push_back(get(item));
    return list;
  }

  Operand list(const Frame& frame, const std::vector<Term>& terms, const Want& want) {
    if (want.kind == ArgKind::tensor) {
      std::vector<tensor::Box*> boxes;
      for (const Term& term : terms) {
        const auto* slot = std::get_if<Slot>(&term.value);
        boxes.push_back(slot != nullptr ? box(frame, *slot) : nullptr);
        if (boxes.back() == nullptr && !want.optional_element) misfit(want);
      }
      return boxes;
    }
    std::vector<IValue> items;
    for (const Term& term : terms) items.push_back(plain(frame, term, want));
    switch (want.kind) {
      case ArgKind::integer:
        return typed<int64_t>(items, [](const IValue& v) { return v.toInt(); });
      case ArgKind::real:
        return typed<double>(items, [](const IValue& v) { return v.toDouble(); });
      case ArgKind::boolean:
        return typed<bool>(items, [](const IValue& v) { return v.toBool(); });
      default:
        misfit(want);
    }
  }

  Operand operand(const Frame& frame, const Step& step, const Want& want) {
    for (const auto& [name, term] : step.args) {
      if (name != want.name) continue;
      if (std::holds_alternative<std::monostate>(term.value)) {
        if (!want.optional) misfit(want);
        if (want.kind == ArgKind::tensor && !want.list) return static_cast<tensor::Box*>(nullptr);
        return IValue();
      }
      const auto* terms = std::get_if<std::vector<Term>>(&term.value);
      if (terms != nullptr && want.list) return list(frame, *terms, want);
      if (terms != nullptr) misfit(want);
      if (want.list) return list(frame, {term}, want);
      return one(frame, term, want);
    }
    if (!want.has_default && !want.optional)
      fail(ErrorKind::model, "[import.argument] argument '{}' is missing; expected {}", want.name,
           want.describe());
    if (want.kind == ArgKind::tensor && !want.list) return static_cast<tensor::Box*>(nullptr);
    return want.fallback;
  }

  // --- calls ----------------------------------------------------------------------------------

  void at_place(const Frame& frame, const Step& step) {
    const std::string& inner = step.origin.module;
    const Site site{path_.empty() || inner.empty() ? path_ + inner : path_ + "." + inner,
                    step.origin.loc,
                    step.origin.text,
                    {}};
    const Place place(L_, recorder_, site);
    try {
      if (is_higher_order(step.op))
        call_body(frame, step);
      else if (is_function(step.op))
        call_function(frame, step);
      else
        call_operator(frame, step);
    } catch (const Error& e) {
      const std::string where = trace::describe(site);
      if (std::exchange(told_, true) || e.message().find(where) != std::string::npos) throw;
      throw Error(e.kind(), fmt::format("{}; {} {}", e.message(), step.op, where), e.hint(),
                  e.traceback());
    }
  }

  void call_function(const Frame& frame, const Step& step) {
    std::vector<double> numbers;
    for (const auto& [name, term] : step.args) {
      const auto value = number(frame, term);
      if (!value) fail(ErrorKind::model, "[import.argument] argument '{}' is no number", name);
      numbers.push_back(value->toDouble());
    }
    const double x = number_of(step, numbers);
    const int slot =
        step.results.empty() || step.results[0].slots.empty() ? -1 : step.results[0].slots[0];
    if (slot < 0) return;
    if (frame.body.slots[static_cast<size_t>(slot)] == Kind::truth)
      lua_pushboolean(L_, x != 0);
    else
      lua_pushnumber(L_, x);
    store(frame, slot);
  }

  void call_body(const Frame& frame, const Step& step) {
    const Inner inner = inner_of(step, [&](const Term& term) {
      const auto value = number(frame, term);
      return value && value->toBool();
    });
    const c10::AutoGradMode grad(inner.mode == Inner::Mode::gradients ? true
                                 : inner.mode == Inner::Mode::no_gradients
                                     ? false
                                     : c10::GradMode::is_enabled());
    const bool again = inner.mode == Inner::Mode::recompute && recorder_ != nullptr &&
                       recorder_->recompute_region < 0;
    if (again) recorder_->recompute_region = recorder_->next_region();
    if (inner.operands.size() != inner.body->inputs.size())
      fail(ErrorKind::model, "[import.operator] its sub-graph takes {} values and gets {}",
           inner.body->inputs.size(), inner.operands.size());
    push_list(frame, inner.operands);
    const int operands = lua_gettop(L_);
    run(*inner.body, operands, frame.depth + 1);
    if (again) recorder_->recompute_region = -1;
    const int outputs = lua_gettop(L_);
    std::vector<int> slots;
    for (const Result& result : step.results)
      slots.insert(slots.end(), result.slots.begin(), result.slots.end());
    for (size_t i = 0; i < slots.size() && i < inner.body->outputs.size(); ++i) {
      lua_rawgeti(L_, outputs, static_cast<int>(i + 1));
      store(frame, slots[i]);
    }
  }

  const Overload& overload_of(const Step& step) {
    const bool spelled = step.op.find('.', step.op.find("::")) != std::string::npos;
    const tensor::Operator* found = tensor::find_operator(spelled ? step.op : step.op + ".default");
    if (found == nullptr || found->overloads.size() != 1)
      throw Error(ErrorKind::model,
                  fmt::format("[import.operator] there is no operator '{}'", step.op),
                  "open the library that has it before the model runs: "
                  "nnscaler.register_op(name, { library = 'path.so' })");
    return found->overloads[0];
  }

  // What the call returns where it only says on which device its operand should be.
  bool stays(const Frame& frame, const Step& step, const Overload& overload) {
    const auto device = std::find_if(overload.args.begin(), overload.args.end(), [](const Want& w) {
      return w.kind == ArgKind::device && !w.optional;
    });
    if (device == overload.args.end() || step.results.size() != 1) return false;
    const tensor::Box* self = nullptr;
    const Term* first = nullptr;
    DType dtype = DType::f32;
    bool given = false;
    for (const auto& [name, term] : step.args) {
      if (const auto* slot = std::get_if<Slot>(&term.value); slot != nullptr && self == nullptr)
        self = box(frame, *slot), first = &term;
      if (const auto* wanted = std::get_if<DType>(&term.value)) dtype = *wanted, given = true;
    }
    if (self == nullptr || (given && tensor::type_of(*self).dtype != dtype)) return false;
    push(frame, *first);
    store(frame, step.results[0].slots.empty() ? -1 : step.results[0].slots[0]);
    return true;
  }

  void call_operator(const Frame& frame, const Step& step) {
    const Overload& overload = overload_of(step);
    const auto& returns = overload.op.schema().returns();
    if (returns.empty()) return;  // asserts what export already knew
    if (stays(frame, step, overload)) return;
    tensor::Call call;
    call.op = &overload.op;
    for (const Want& want : overload.args) call.args.push_back(operand(frame, step, want));
    const int top = lua_gettop(L_);
    const int made = recorder_ != nullptr ? recorder_->record(L_, call) : tensor::invoke(L_, call);
    for (size_t i = 0; i < step.results.size() && i < static_cast<size_t>(made); ++i) {
      const Result& result = step.results[i];
      const int at = top + 1 + static_cast<int>(i);
      const int written = overload.result_is_arg[i];
      if (written >= 0) {  // in place: the operand itself
        for (const auto& [name, term] : step.args)
          if (name == overload.args[static_cast<size_t>(written)].name && !result.slots.empty()) {
            push(frame, term);
            store(frame, result.slots[0]);
          }
      } else if (!result.list) {
        if (result.slots.empty()) continue;
        lua_pushvalue(L_, at);
        store(frame, result.slots[0]);
      } else {
        for (size_t k = 0; k < result.slots.size(); ++k) {
          lua_rawgeti(L_, at, static_cast<int>(k + 1));
          store(frame, result.slots[k]);
        }
      }
    }
  }

  lua_State* L_;
  Recorder* recorder_;  // nullptr: the calls compute
  std::string path_;
  std::optional<Widening> widening_;
  bool told_ = false;  // an error has got its place
};

}  // namespace

void replay(lua_State* L, const Body& body, int inputs, const std::string& path,
            std::optional<Widening> widening) {
  Replay(L, path, widening).run(body, inputs, 0);
}

}  // namespace nns::trace::import
