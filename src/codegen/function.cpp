#include "codegen/function.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/lists.h"
#include "lower/block.h"
#include "lower/uses.h"

namespace nns::codegen {
namespace {

using lower::Arg;
using lower::InstrKind;
using lower::NamedArg;
using lower::Ref;
using lower::SlotRole;

constexpr size_t kWidth = 98;
constexpr size_t kMostLocals = 150;   // LuaJIT allows 200 a function
constexpr size_t kMostReleased = 40;  // arguments of a call stand beside the locals

bool is_tensor(const Arg& arg) {
  return std::holds_alternative<Ref>(arg) || std::holds_alternative<std::vector<Ref>>(arg);
}

bool is_nil(const Arg& arg) {
  if (std::holds_alternative<std::monostate>(arg)) return true;
  const auto* ref = std::get_if<Ref>(&arg);
  return ref != nullptr && ref->id < 0;
}

}  // namespace

bool returns_list(std::string_view op) {
  const operators::Schema* schema = operators::schema_of(op);
  return schema != nullptr && schema->returns_list;
}

FunctionWriter::FunctionWriter(const Program& program, const Operators& operators,
                               const Groups& groups, std::string path,
                               std::set<std::string> reserved)
    : program_(program),
      operators_(operators),
      groups_(groups),
      path_(std::move(path)),
      names_(std::move(reserved)) {}

std::string FunctionWriter::parameter(int slot, std::string_view tree) {
  const std::string& name = program_.slot(slot).name;
  const bool own = !path_.empty() && lower::below_path(name, path_);
  const std::string table(!own ? tree : tree == "p" ? "w" : tree == "g" ? "dw" : "db");
  needs_.insert(table);
  return table + index_path(own ? name.substr(path_.size() + 1) : name);
}

std::string FunctionWriter::field_of(int slot, std::string_view tree) {
  const std::string full = parameter(slot, tree);
  const size_t at = full.back() == ']' ? full.rfind('[') : full.rfind('.');
  std::string key = full.substr(at);
  key = key.front() == '.' ? quoted(key.substr(1)) : key.substr(1, key.size() - 2);
  return fmt::format("{}, {}", full.substr(0, at), key);
}

std::string FunctionWriter::expression(int slot) {
  if (const auto it = expression_.find(slot); it != expression_.end()) return it->second;
  const auto role = program_.slot(slot).role;
  if (role == SlotRole::parameter || role == SlotRole::buffer || role == SlotRole::cast)
    return parameter(slot, "p");
  if (role == SlotRole::constant) {
    needs_.insert("ctx");
    const auto& all = program_.constants;
    return fmt::format("ctx.constants[{}]",
                       std::find(all.begin(), all.end(), slot) - all.begin() + 1);
  }
  NNS_CHECK(false, "codegen: slot {} has no expression", slot);
}

std::string FunctionWriter::hint_of(int slot) const {
  const std::string& name = program_.slot(slot).name;
  return identifier(name.substr(name.rfind('.') + 1));
}

std::string FunctionWriter::declaration(const std::string& name) {
  return name.starts_with("rest.") ? name : "local " + name;
}

std::string FunctionWriter::fresh_local(const std::string& hint) {
  const std::string name = names_.fresh(hint.substr(hint.rfind('.') + 1));
  if (locals_ >= kMostLocals) {
    overflow_ = true;
    return "rest." + name;
  }
  ++locals_;
  return name;
}

std::string FunctionWriter::declare(int slot) {
  const std::string name = fresh_local(program_.slot(slot).name);
  expression_[slot] = name;
  hint_[slot] = hint_of(slot);
  return name;
}

std::string FunctionWriter::target(int slot, bool& local) {
  local = false;
  if (const auto it = field_.find(slot); it != field_.end()) {
    if (it->second.starts_with("s.")) needs_.insert("s");
    return expression_[slot] = it->second;
  }
  const std::string hint = hint_of(slot);
  hint_[slot] = hint;
  if (auto& free = free_[hint]; !free.empty()) {
    expression_[slot] = free.back();
    free.pop_back();
    return expression_[slot];
  }
  const std::string name = fresh_local(hint);
  local = !name.starts_with("rest.");
  return expression_[slot] = name;
}

void FunctionWriter::freed(int slot) {
  if (const auto it = hint_.find(slot); it != hint_.end()) {
    auto& free = free_[it->second];
    const std::string& name = expression_.at(slot);
    if (std::find(free.begin(), free.end(), name) == free.end()) free.push_back(name);
  }
}

struct FunctionWriter::ValueWriter {
  FunctionWriter& w;
  const Instr& instr;
  std::string operator()(std::monostate) const { return "nil"; }
  std::string operator()(Ref ref) const { return ref.id < 0 ? "nil" : w.expression(ref.id); }
  std::string operator()(bool x) const { return x ? "true" : "false"; }
  std::string operator()(int64_t x) const { return x == INT64_MAX ? "nil" : fmt::format("{}", x); }
  std::string operator()(double x) const { return real(x); }
  std::string operator()(const std::string& x) const {
    if (!w.path_.empty() && lower::below_path(x, w.path_)) {
      w.needs_.insert("path");
      return fmt::format("path .. {}", quoted(x.substr(w.path_.size())));
    }
    return quoted(x);
  }
  std::string operator()(DType x) const { return quoted(name_of(x)); }
  std::string operator()(const graph::Symbol& x) const {
    if (x.name.starts_with("=")) return x.name.substr(1);  // of the variable of a loop
    if (!x.name.starts_with("$")) return quoted(x.name);
    w.needs_.insert("ctx");
    return "ctx." + x.name.substr(1);
  }
  std::string operator()(const std::vector<Ref>& list) const {
    std::vector<std::string> texts;
    for (Ref ref : list) texts.push_back(ref.id < 0 ? "false" : w.expression(ref.id));
    return list_text(texts);
  }
  template <class T>
  std::string operator()(const std::vector<T>& list) const {
    std::string text;
    for (const auto& item : list) {
      std::string one = (*this)(T(item));
      if (one == "nil") one = "false";  // a hole in a list
      text += (text.empty() ? "" : ", ") + one;
    }
    return text.empty() ? "{}" : "{ " + text + " }";
  }
};

std::string FunctionWriter::value(const NamedArg& arg, const Instr& instr) {
  if (Groups::is_group(instr, arg)) return groups_.name(std::get<nns::Shape>(arg.value));
  if (const auto* text = std::get_if<std::string>(&arg.value))
    return text_value(arg, instr, *text, "");
  return std::visit(ValueWriter{*this, instr}, arg.value);
}

std::string FunctionWriter::text_value(const NamedArg& arg, const Instr& instr,
                                       const std::string& text, const std::string& more) {
  const std::string spelled = ValueWriter{*this, instr}(text) + more;
  if (!program_.embedded || arg.name != "key") return spelled;
  needs_.insert("ctx");
  return fmt::format("random_key(ctx, {})", spelled);
}

std::string FunctionWriter::arguments(const Instr& instr) {
  std::string positional, named;
  size_t last = instr.args.size();
  const operators::Schema* schema = operators::schema_of(instr.op);
  const auto parameter = [&](const NamedArg& a) {
    return schema == nullptr ? nullptr : schema->find(a.name);
  };
  // Of an operator without a schema, such as one of a user's library, only the names of arguments
  // are known: some may be by keyword only.
  const auto by_name = [&](const NamedArg& a) {
    const operators::Parameter* p = parameter(a);
    return schema == nullptr ? !is_tensor(a.value) : p != nullptr && p->keyword_only;
  };
  const auto left_out = [&](const NamedArg& a) {
    const operators::Parameter* p = parameter(a);
    return is_nil(a.value) || (p != nullptr && operators::is_default(*p, a.value));
  };
  while (last > 0 && (left_out(instr.args[last - 1]) || by_name(instr.args[last - 1]))) --last;
  // Below `last` all is positional up to the first argument that is left out or named.
  bool in_order = true;
  for (size_t i = 0; i < instr.args.size(); ++i) {
    const NamedArg& a = instr.args[i];
    in_order = in_order && i < last && !by_name(a);
    if (in_order) {
      positional += (i == 0 ? "" : ", ") + value(a, instr);
      continue;
    }
    if (left_out(a)) continue;
    const std::string name = index_by(a.name);
    named += fmt::format("{}{} = {}", named.empty() ? "" : ", ",
                         name.front() == '.' ? name.substr(1) : name, value(a, instr));
  }
  if (named.empty()) return positional;
  return fmt::format("{}{}{{ {} }}", positional, positional.empty() ? "" : ", ", named);
}

// rt.vjp('aten::op', { gradients }, { which operands want one }, arguments of the call …)
std::string FunctionWriter::vjp(const Instr& instr) {
  std::string grads, needs;
  Instr call = instr;
  call.op = instr.op.substr(lower::kAgain.size());
  call.args.clear();
  for (const NamedArg& a : instr.args) {
    if (a.name == "grad_outputs") {
      grads = ValueWriter{*this, instr}(std::get<std::vector<Ref>>(a.value));
    } else if (a.name == "needs") {
      for (bool b : std::get<std::vector<bool>>(a.value))
        needs += fmt::format("{}{}", needs.empty() ? "" : ", ", b);
    } else {
      call.args.push_back(a);
    }
  }
  return fmt::format("rt.vjp({}, {}, {{ {} }}, {})", quoted(call.op), grads, needs,
                     arguments(call));
}

std::string FunctionWriter::comment(const Instr& instr) const {
  std::string module = instr.module;
  if (!path_.empty() && lower::below_path(module, path_))
    module = module.substr(path_.size() + 1);
  else if (module == path_ && !path_.empty())
    module = "";
  const std::string place = instr.loc.line > 0 ? short_form(instr.loc) : "";
  if (place.empty() && module.empty()) return "";
  return fmt::format("  -- {}{}{}", place, place.empty() || module.empty() ? "" : "  ", module);
}

void FunctionWriter::put_line(const std::string& line) {
  lines_.push_back(wrap(indent_ + line, kWidth, indent_ + "  "));
}

void FunctionWriter::put(std::string code, const Instr& instr) {
  const std::string note = comment(instr);
  const std::string line = indent_ + code;
  if (line.size() + note.size() <= kWidth) {
    lines_.push_back(line + note);
    return;
  }
  if (!note.empty()) lines_.push_back(indent_ + note.substr(2));
  lines_.push_back(wrap(line, kWidth, indent_ + "  "));
}

void FunctionWriter::call(const Instr& instr) {
  if (lower::is_in_place(instr)) {
    const int into = lower::reads(instr)[0];
    put(fmt::format("{}({})", operators_.call(instr.op), arguments(instr)), instr);
    expression_[instr.outs[0]] = expression(into);
    if (const auto field = field_.find(instr.outs[0]); field != field_.end()) {
      if (field->second.starts_with("s.")) needs_.insert("s");
      raw(fmt::format("{} = {}", field->second, expression(into)));
      expression_[instr.outs[0]] = field->second;
    }
    if (const auto it = hint_.find(into); it != hint_.end()) hint_[instr.outs[0]] = it->second;
    return;
  }
  const bool again = lower::is_again(instr);
  std::string list = again ? "" : arguments(instr);
  if (instr.into >= 0) list += fmt::format(", into({})", field_of(instr.into, "g"));
  std::string right = again ? vjp(instr) : fmt::format("{}({})", operators_.call(instr.op), list);
  const bool is_list = !again && returns_list(instr.op);
  // Trailing results that nobody wants are left out.
  size_t count = instr.outs.size();
  while (count > 0 && instr.outs[count - 1] < 0) --count;
  if (count == 0) return put(right, instr);
  if (count > kMany) return call_many(instr, right, is_list, count);
  if (is_list) right = fmt::format("unpack({})", right);
  std::string left;
  std::vector<std::string> new_locals;
  bool all_local = true, any_local = false;
  for (size_t i = 0; i < count; ++i) {
    bool local = false;
    std::string name = spill_ ? "rest._" : "_";
    if (instr.outs[i] >= 0) {
      name = target(instr.outs[i], local);
      if (local) new_locals.push_back(name);
      all_local = all_local && local;
      any_local = any_local || local;
    } else if (!spill_ && names_.take("_")) {  // declared once
      new_locals.push_back("_");
      any_local = true;
    }
    left += (i == 0 ? "" : ", ") + name;
  }
  if (any_local && !all_local) {
    std::string names;
    for (const std::string& name : new_locals) names += (names.empty() ? "" : ", ") + name;
    raw("local " + names);
  }
  put(fmt::format("{}{} = {}", any_local && all_local ? "local " : "", left, right), instr);
}

// Many results stay in the table that they come in.
void FunctionWriter::call_many(const Instr& instr, const std::string& right, bool is_list,
                               size_t count) {
  std::string table;
  bool kept = true;  // all in one table of saved values, at their places
  for (size_t k = 0; k < count && kept; ++k) {
    const auto field = field_.find(instr.outs[k]);
    kept = field != field_.end() && field->second.ends_with(fmt::format("[{}]", k + 1));
    if (!kept) break;
    const std::string own = field->second.substr(0, field->second.rfind('['));
    kept = table.empty() || table == own;
    table = own;
  }
  if (kept)
    needs_.insert("s");
  else
    table = fresh_local(std::string(operators::base_of(instr.op)).substr(instr.op.find("::") + 2));
  put(fmt::format("{} = {}", kept ? table : declaration(table),
                  is_list ? right : "{ " + right + " }"),
      instr);
  for (size_t k = 0; k < count; ++k) {
    const int out = instr.outs[k];
    if (out < 0) continue;
    expression_[out] = fmt::format("{}[{}]", table, k + 1);
    const auto field = field_.find(out);
    if (kept || field == field_.end()) continue;
    if (field->second.starts_with("s.")) needs_.insert("s");
    raw(fmt::format("{} = {}", field->second, expression_[out]));
    expression_[out] = field->second;
  }
}

void FunctionWriter::release(const Instr& instr) {
  const std::vector<int> slots = lower::reads(instr);
  std::vector<std::string> texts;
  for (int slot : slots) texts.push_back(expression(slot));
  for (int slot : slots) freed(slot);
  std::string list;
  size_t count = 0;
  const auto close = [&] {
    if (count > 0) put_line(fmt::format("release({})", list));
    list.clear();
    count = 0;
  };
  for (const Piece& piece : pieces(texts)) {
    if (piece.table.empty()) {
      list += (count == 0 ? "" : ", ") + piece.single;
      if (++count == kMostReleased) close();
      continue;
    }
    close();
    raw(fmt::format("for i = {}, {}{} do release({}[i]) end", piece.first, piece.last,
                    piece.first > piece.last ? ", -1" : "", piece.table));
  }
  close();
}

void FunctionWriter::statement(const Instr& instr) {
  switch (instr.kind) {
    case InstrKind::call:
      call(instr);
      break;
    case InstrKind::release:
      release(instr);
      break;
    case InstrKind::accumulate:
    case InstrKind::update: {
      const bool gradient = instr.kind == InstrKind::accumulate;
      const std::string field = field_of(instr.target, gradient ? "g" : "u");
      const int value = lower::reads(instr)[0];
      const char* verb = !gradient                ? "update"
                         : lower::is_owned(instr) ? "accumulate"
                                                  : "accumulate_copy";
      put(fmt::format("{}({}, {})", verb, field, expression(value)), instr);
      if (gradient && lower::is_owned(instr)) freed(value);
      break;
    }
  }
}

}  // namespace nns::codegen
