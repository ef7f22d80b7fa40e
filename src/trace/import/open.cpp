#include "trace/import/open.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <lua.hpp>
#include <map>

#include "base/error.h"
#include "operators/record.h"
#include "script/state.h"
#include "tensor/box.h"
#include "tensor/operators.h"
#include "trace/import/archive.h"
#include "trace/import/functions.h"
#include "trace/import/program.h"
#include "trace/import/replay.h"

namespace nns::trace::import {
namespace {

using script::guarded;

struct Opened {
  Archive archive;
  Program program;
  explicit Opened(const std::string& path) : archive(path), program(read_program(archive)) {}
};
using OpenedPtr = std::shared_ptr<const Opened>;
constexpr const char* kType = "nnscaler.ExportedProgram";

const Opened& check(lua_State* L) {
  return *script::check_object<OpenedPtr>(L, 1, kType);
}

void set_text(lua_State* L, const char* key, std::string_view text) {
  script::push_string(L, text);
  lua_setfield(L, -2, key);
}
void set_flag(lua_State* L, const char* key, bool flag) {
  lua_pushboolean(L, flag);
  lua_setfield(L, -2, key);
}

const Stored* find_stored(const Program& program, std::string_view name) {
  const auto it = std::lower_bound(
      program.stored.begin(), program.stored.end(), name,
      [](const Stored& stored, std::string_view wanted) { return stored.name < wanted; });
  return it != program.stored.end() && it->name == name ? &*it : nullptr;
}

std::string_view name_of(Role role) {
  switch (role) {
    case Role::parameter:
      return "parameter";
    case Role::buffer:
      return "buffer";
    case Role::constant:
      return "constant";
    case Role::number:
      return "number";
    default:
      return "input";
  }
}

void push_plain(lua_State* L, const Term& term) {
  if (const auto* flag = std::get_if<bool>(&term.value)) return lua_pushboolean(L, *flag);
  if (const auto* whole = std::get_if<int64_t>(&term.value))
    return lua_pushnumber(L, static_cast<double>(*whole));
  if (const auto* real = std::get_if<double>(&term.value)) return lua_pushnumber(L, *real);
  if (const auto* text = std::get_if<std::string>(&term.value))
    return script::push_string(L, *text);
  lua_pushnil(L);
}

void push_input(lua_State* L, const Program& program, const Input& input) {
  lua_createtable(L, 0, 8);
  set_text(L, "role", name_of(input.role));
  set_text(L, "name", input.name);
  set_flag(L, "persistent", input.persistent);
  push_plain(L, input.value);
  lua_setfield(L, -2, "value");
  if (const Stored* stored = find_stored(program, input.name);
      stored != nullptr && input.role != Role::input && input.role != Role::number) {
    set_text(L, "dtype", nns::name_of(stored->type.dtype));
    script::push_ints(L, stored->type.shape);
    lua_setfield(L, -2, "shape");
    set_flag(L, "requires_grad", stored->requires_grad);
    // Equal for names of one tensor.
    set_text(L, "place",
             fmt::format("{} {} {}", stored->record, stored->offset,
                         to_string(stored->type) + to_string(stored->strides)));
    set_text(L, "record", stored->record);
  }
  if (input.role == Role::input && input.dtype) {
    set_text(L, "dtype", nns::name_of(*input.dtype));
    lua_createtable(L, static_cast<int>(input.sizes.size()), 0);
    for (size_t d = 0; d < input.sizes.size(); ++d) {
      lua_pushnumber(L, input.sizes[d] ? static_cast<double>(*input.sizes[d]) : -1);
      lua_rawseti(L, -2, static_cast<int>(d + 1));
    }
    lua_setfield(L, -2, "sizes");
  }
}

void push_tree(lua_State* L, const Tree& tree) {
  luaL_checkstack(L, 8, "arguments nested too deeply");
  lua_createtable(L, static_cast<int>(tree.children.size()), 2);
  static constexpr const char* kKinds[] = {"leaf", "list", "table", "nothing"};
  set_text(L, "kind", kKinds[static_cast<size_t>(tree.kind)]);
  if (!tree.keys.empty()) {
    lua_createtable(L, static_cast<int>(tree.keys.size()), 0);
    for (size_t i = 0; i < tree.keys.size(); ++i) {
      script::push_string(L, tree.keys[i]);
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
    lua_setfield(L, -2, "keys");
  }
  for (size_t i = 0; i < tree.children.size(); ++i) {
    push_tree(L, tree.children[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

template <class List, class Push>
void set_list(lua_State* L, const char* key, const List& list, Push push) {
  lua_createtable(L, static_cast<int>(list.size()), 0);
  int i = 0;
  for (const auto& item : list) {
    push(item);
    lua_rawseti(L, -2, ++i);
  }
  lua_setfield(L, -2, key);
}

// The first call that does in training what it does not in evaluation: draws, running statistics.
const Step* find_training(const Body& body) {
  const Step* found = nullptr;
  for_each_step(body, [&](const Step& step) {
    const operators::Record* record = operators::find(step.op);
    if (found != nullptr || record == nullptr || (!record->random && record->mutates.empty()))
      return;
    for (const auto& [name, term] : step.args) {
      const bool* on = std::get_if<bool>(&term.value);
      if ((name == "train" || name == "training") && on != nullptr && !*on) return;
      const double* p = std::get_if<double>(&term.value);
      if ((name == "p" || name == "dropout_p") && p != nullptr && *p == 0) return;
    }
    const bool draws = record->random && step.args.size() > 1;
    if (draws || !record->mutates.empty()) found = &step;
  });
  return found;
}

// → { name, torch, inputs, updates = { { output, buffer } }, results = { output }, arguments,
// returned, argument_names, trains }; outputs count from 1; trains: a call that tells training
// from evaluation, in words.
int about(lua_State* L) {
  const Program& program = check(L).program;
  lua_createtable(L, 0, 8);
  set_text(L, "name", program.name);
  set_text(L, "torch", program.torch_version);
  if (const Step* step = find_training(program.body))
    set_text(L, "trains", fmt::format("{} {}", step->op, describe(step->origin)));
  set_list(L, "inputs", program.inputs, [&](const Input& input) { push_input(L, program, input); });
  set_list(L, "updates", program.updates, [&](const auto& update) {
    lua_createtable(L, 0, 2);
    lua_pushnumber(L, static_cast<double>(update.first + 1));
    lua_setfield(L, -2, "output");
    set_text(L, "buffer", update.second);
  });
  set_list(L, "results", program.results,
           [&](size_t output) { lua_pushnumber(L, static_cast<double>(output + 1)); });
  push_tree(L, program.arguments);
  lua_setfield(L, -2, "arguments");
  push_tree(L, program.returned);
  lua_setfield(L, -2, "returned");
  set_list(L, "argument_names", program.argument_names,
           [&](const std::string& name) { script::push_string(L, name); });
  return 1;
}

// → list of { op, count, module, place, registered, known } sorted by op: operators it calls.
int operators_of(lua_State* L) {
  struct Use {
    int count = 0;
    const Step* first = nullptr;
  };
  std::map<std::string, Use> uses;
  for_each_step(check(L).program.body, [&](const Step& step) {
    Use& use = uses[step.op];
    if (use.count++ == 0) use.first = &step;
  });
  lua_createtable(L, static_cast<int>(uses.size()), 0);
  int i = 0;
  for (const auto& [op, use] : uses) {
    lua_createtable(L, 0, 6);
    set_text(L, "op", op);
    lua_pushnumber(L, use.count);
    lua_setfield(L, -2, "count");
    set_text(L, "place", describe(use.first->origin));
    const bool plain = is_function(op);
    const std::string functional = operators::functional_form(op).value_or(op);
    set_flag(L, "recorded", plain || operators::find(functional) != nullptr);
    const bool spelled = op.find('.', op.find("::")) != std::string::npos;
    set_flag(L, "there", plain || tensor::find_operator(spelled ? op : op + ".default") != nullptr);
    lua_rawseti(L, -2, ++i);
  }
  return 1;
}

// (name) → the values of a weight, buffer or constant, in memory of their own.
int values(lua_State* L) {
  const Opened& opened = check(L);
  const std::string name = script::check_string(L, 2);
  const Stored* stored = find_stored(opened.program, name);
  if (stored == nullptr) opened.archive.refuse(fmt::format("holds no values of '{}'", name));
  const size_t bytes = opened.archive.size(stored->record);
  const int64_t each = size_of(stored->type.dtype);
  const auto options = at::TensorOptions().dtype(tensor::to_torch(stored->type.dtype));
  at::Tensor storage = at::empty({static_cast<int64_t>(bytes) / each}, options);
  if (static_cast<size_t>(storage.numel() * each) != bytes)
    opened.archive.refuse(fmt::format("is damaged: record '{}' has {} bytes, no multiple of {}",
                                      stored->record, bytes, each));
  opened.archive.read_to(stored->record, storage.mutable_data_ptr(), bytes);
  if (stored->type.dtype == DType::boolean) {
    const auto* truth = static_cast<const unsigned char*>(storage.const_data_ptr());
    if (std::any_of(truth, truth + bytes, [](unsigned char b) { return b > 1; }))
      opened.archive.refuse(fmt::format("is damaged: '{}' holds no truth values", name));
  }
  at::Tensor view = storage.as_strided(stored->type.shape, stored->strides, stored->offset);
  const bool whole = view.is_contiguous() && view.numel() == storage.numel();
  tensor::push(L, whole ? view : view.clone(at::MemoryFormat::Contiguous));
  return 1;
}

// (inputs, path [, from, to]) → list of outputs. Inputs are those of `about`, in their order;
// dtype arguments `from` become `to`.
int run(lua_State* L) {
  const Opened& opened = check(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  const std::string path = script::check_string(L, 3);
  std::optional<Widening> widening;
  if (!lua_isnoneornil(L, 4)) {
    const auto from = dtype_from_name(script::check_string(L, 4));
    const auto to = dtype_from_name(script::check_string(L, 5));
    NNS_CHECK(from && to, "unknown dtypes");
    widening = Widening{*from, *to};
  }
  replay(L, opened.program.body, 2, path, widening);
  return 1;
}

int open_program(lua_State* L) {  // (path) → program
  script::push_object<OpenedPtr>(L, kType,
                                 std::make_shared<const Opened>(script::check_string(L, 1)));
  return 1;
}

}  // namespace

void add_import(lua_State* L) {
  script::make_type<OpenedPtr>(L, kType,
                               {{"about", guarded<about>},
                                {"operators", guarded<operators_of>},
                                {"values", guarded<values>},
                                {"run", guarded<run>}});
  script::set_functions(L, {{"open_program", guarded<open_program>}});
}

}  // namespace nns::trace::import
