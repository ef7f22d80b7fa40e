// The reader of graphs written as text.
#include "support/graph_text.h"

#include <cstring>
#include <map>
#include <stdexcept>

#include "operators/record.h"

namespace nns::test {

using namespace graph;

namespace {

class Cursor {
 public:
  explicit Cursor(std::string_view line) : line_(line), rest_(line) {}

  void skip() {
    while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
  }
  bool at(std::string_view text) {
    skip();
    return rest_.starts_with(text);
  }
  bool take(std::string_view text) {
    if (!at(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void expect(std::string_view text) {
    if (!take(text)) fail("expected '" + std::string(text) + "'");
  }
  bool done() {
    skip();
    return rest_.empty();
  }
  // Characters up to one of `stops`.
  std::string word(std::string_view stops = " ,:()[]=") {
    skip();
    const size_t n = std::min(rest_.find_first_of(stops), rest_.size());
    const std::string out(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return out;
  }
  std::string quoted() {
    expect("\"");
    std::string out;
    while (!rest_.empty() && rest_[0] != '"') {
      char c = rest_[0];
      rest_.remove_prefix(1);
      if (c == '\\' && !rest_.empty()) {
        c = rest_[0];
        rest_.remove_prefix(1);
        if (c == 'x') {
          c = static_cast<char>(std::stoi(std::string(rest_.substr(0, 2)), nullptr, 16));
          rest_.remove_prefix(2);
        }
      }
      out.push_back(c);
    }
    if (rest_.empty()) fail("a text without end");
    rest_.remove_prefix(1);
    return out;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("graph text: " + what + " at '" + std::string(rest_) + "' of '" +
                             std::string(line_) + "'");
  }

 private:
  std::string_view line_, rest_;
};

bool is_number(const std::string& word) {
  return !word.empty() && word.find_first_not_of("-0123456789") == std::string::npos;
}

std::string bytes_of_values(const TensorType& type, const std::vector<double>& values) {
  std::string out;
  const auto put = [&](auto x) { out.append(reinterpret_cast<const char*>(&x), sizeof x); };
  for (double v : values) {
    if (type.dtype == DType::f64)
      put(v);
    else if (type.dtype == DType::f32)
      put(static_cast<float>(v));
    else if (type.dtype == DType::i64)
      put(static_cast<int64_t>(v));
    else
      put(static_cast<uint8_t>(v));
  }
  return out;
}

class Reader {
 public:
  Graph read(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    graph::verify(g_);
    return std::move(g_);
  }

 private:
  void line(std::string_view text) {
    Cursor c(text);
    if (c.done() || c.at("#")) return;
    if (c.take("graph ")) {
      g_.name = c.quoted();
      g_.training = !c.take("evaluation");
    } else if (c.take("input ")) {
      leaf(c, Role::input, &g_.inputs);
    } else if (c.take("parameter ")) {
      leaf(c, Role::parameter, &g_.parameters);
    } else if (c.take("buffer ")) {
      leaf(c, Role::buffer, &g_.buffers);
    } else if (c.take("constant ")) {
      leaf(c, Role::constant, nullptr);
    } else if (c.take("alias ")) {
      const std::string alias = c.quoted();
      c.expect("=");
      g_.aliases.emplace_back(alias, c.quoted());
    } else if (c.take("update ")) {
      const int buffer = known(c);
      c.expect("=");
      g_.buffer_updates.emplace_back(buffer, known(c));
    } else if (c.take("output ")) {
      g_.outputs.push_back(nest(c));
    } else {
      node(c);
    }
  }

  int fresh(Cursor& c) {
    c.expect("%");
    const std::string name = c.word();
    const int id = is_number(name) ? std::stoi(name) : static_cast<int>(g_.values.size());
    if (!ids_.emplace(name, id).second) c.fail("%" + name + " is there already");
    if (g_.values.size() <= static_cast<size_t>(id)) g_.values.resize(static_cast<size_t>(id) + 1);
    g_.values[static_cast<size_t>(id)].id = id;
    return id;
  }
  int known(Cursor& c) {
    c.expect("%");
    const std::string name = c.word(" ,:()[]=}");
    const auto it = ids_.find(name);
    if (it == ids_.end()) c.fail("unknown %" + name);
    return it->second;
  }
  Value& value(int id) { return g_.values[static_cast<size_t>(id)]; }

  TensorType type(Cursor& c) {
    const auto dtype = dtype_from_name(c.word());
    if (!dtype) c.fail("a dtype");
    TensorType out{{}, *dtype};
    c.expect("[");
    while (!c.take("]")) {
      out.shape.push_back(std::stoll(c.word()));
      c.take(",");
    }
    return out;
  }

  void leaf(Cursor& c, Role role, std::vector<int>* list) {
    const int id = fresh(c);
    const std::string name = c.quoted();
    c.expect(":");
    Value& v = value(id);
    v.name = name;
    v.role = role;
    v.type = type(c);
    v.requires_grad = c.take("grad");
    if (c.take("values=")) {
      std::vector<double> values;
      while (!c.done()) values.push_back(std::stod(c.word(" ")));
      v.data = bytes_of_values(v.type, values);
    }
    if (list != nullptr) list->push_back(id);
  }

  Nest nest(Cursor& c) {
    if (c.take("nil")) return {};
    if (c.take("true")) return {true};
    if (c.take("false")) return {false};
    if (c.at("%")) return {ValueRef{known(c)}};
    if (c.at("\"")) return {c.quoted()};
    if (c.take("{")) {
      std::vector<std::pair<std::string, Nest>> fields;
      while (!c.take("}")) {
        std::string key = c.quoted();
        c.expect("=");
        fields.emplace_back(std::move(key), nest(c));
        c.take(",");
      }
      return {std::move(fields)};
    }
    return {std::stod(c.word(" ,}"))};
  }

  Arg argument(Cursor& c) {
    if (c.at("%")) return ValueRef{known(c)};
    if (c.at("\"")) return c.quoted();
    if (c.take("[")) return list(c);
    const std::string word = c.word(" ,()[]");
    if (word == "nil") return {};
    if (word == "true" || word == "false") return word == "true";
    if (const auto dtype = dtype_from_name(word)) return *dtype;
    if (is_number(word)) return static_cast<int64_t>(std::stoll(word));
    char* end = nullptr;
    const double real = std::strtod(word.c_str(), &end);
    if (*end == 0) return real;
    return Symbol{word};
  }
  Arg list(Cursor& c) {
    std::vector<Arg> all;
    bool refs = false;
    while (!c.take("]")) {
      all.push_back(argument(c));
      refs = refs || std::holds_alternative<ValueRef>(all.back());
      c.take(",");
    }
    if (all.empty()) return Shape{};
    if (refs) {
      std::vector<ValueRef> out;
      for (const Arg& a : all)
        out.push_back(std::holds_alternative<ValueRef>(a) ? std::get<ValueRef>(a) : ValueRef{});
      return out;
    }
    return std::visit(
        [&](const auto& first) -> Arg {
          using T = std::decay_t<decltype(first)>;
          if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> ||
                        std::is_same_v<T, double>) {
            std::vector<T> out;
            for (const Arg& a : all) out.push_back(std::get<T>(a));
            return out;
          } else {
            c.fail("a list of these");
          }
        },
        all[0]);
  }

  void node(Cursor& c) {
    Node n;
    n.id = static_cast<int>(g_.nodes.size());
    std::vector<int> untyped;
    while (c.at("%")) {
      const int id = fresh(c);
      n.outputs.push_back(id);
      value(id).producer = n.id;
      if (c.take(":")) {
        value(id).type = type(c);
        value(id).requires_grad = c.take("grad");
        if (c.take("constant")) value(id).role = Role::constant;
      } else {
        untyped.push_back(id);
      }
      c.take(",");
    }
    if (!n.outputs.empty()) c.expect("=");
    n.op = c.word("(");
    c.expect("(");
    while (!c.take(")")) {
      NamedArg arg;
      arg.name = c.word("=");
      c.expect("=");
      arg.value = argument(c);
      n.args.push_back(std::move(arg));
      c.take(",");
    }
    int ordinal = -1;
    if (c.take("--")) {
      n.module = c.word(" #");
      if (n.module == ".") n.module.clear();
      if (c.take("#")) ordinal = std::stoi(c.word(" "));
      n.context.grad_enabled = !c.take("no_grad");
      if (c.take("autocast=")) n.context.autocast = c.word(" ");
      if (c.take("recompute=")) n.context.recompute_region = std::stoi(c.word(" "));
    }
    n.ordinal = ordinal >= 0 ? ordinal : calls_[{n.module, n.op}];
    ++calls_[{n.module, n.op}];
    if (!untyped.empty()) infer(n, c);
    g_.nodes.push_back(std::move(n));
  }

  void infer(const Node& n, const Cursor& c) {
    const operators::CallView call(g_, n);
    const auto types = operators::infer(call);
    if (types.size() != n.outputs.size()) c.fail(std::to_string(types.size()) + " results");
    const operators::Record* info = operators::find(n.op);
    bool grad = n.context.grad_enabled && !info->constant;
    bool any = false;
    for (int id : inputs_of(n)) any = any || value(id).requires_grad;
    for (size_t i = 0; i < types.size(); ++i) {
      value(n.outputs[i]).type = types[i];
      value(n.outputs[i]).requires_grad = grad && any && is_floating(types[i].dtype);
    }
  }

  Graph g_;
  std::map<std::string, int> ids_;
  std::map<std::pair<std::string, std::string>, int> calls_;
};

}  // namespace

Graph read_graph(std::string_view text) {
  return Reader().read(text);
}

std::vector<int> add_call(Graph& graph, const std::string& op, std::vector<NamedArg> args,
                          const std::string& module, Context context) {
  Node n;
  n.id = static_cast<int>(graph.nodes.size());
  n.op = op;
  n.args = std::move(args);
  n.module = module;
  n.context = std::move(context);
  for (const Node& other : graph.nodes)
    if (other.op == op && other.module == module) ++n.ordinal;
  const auto types = operators::infer(operators::CallView(graph, n));
  const operators::Record* info = operators::find(op);
  bool grad = false;
  for (int id : inputs_of(n)) grad = grad || graph.value({id}).requires_grad;
  grad = grad && n.context.grad_enabled && !info->constant;
  for (const TensorType& type : types) {
    Value v;
    v.id = static_cast<int>(graph.values.size());
    v.type = type;
    v.producer = n.id;
    v.requires_grad = grad && is_floating(type.dtype);
    n.outputs.push_back(v.id);
    graph.values.push_back(std::move(v));
  }
  graph.nodes.push_back(n);
  return graph.nodes.back().outputs;
}

}  // namespace nns::test
