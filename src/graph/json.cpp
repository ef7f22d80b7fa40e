// JSON form of a graph: complete (source places too), keys in a fixed order, read back strictly:
// every field must be there with its type, unknown fields and damaged wiring are refused.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "graph/graph.h"

namespace nns::graph {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "nnscaler graph";
constexpr int kVersion = 1;
constexpr int kMaxDepth = 64;

// --- writing -------------------------------------------------------------------------------------

// JSON has no infinities: those become strings.
Json real(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return x;
}

template <class T, class F>
Json list_of(const std::vector<T>& items, F one) {
  Json out = Json::array();
  for (const auto& item : items) out.push_back(one(item));
  return out;
}

int id_of(ValueRef ref) {
  return ref.id;
}

struct ArgWriter {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(ValueRef x) const { return {{"value", x.id}}; }
  Json operator()(const std::vector<ValueRef>& x) const { return {{"values", list_of(x, id_of)}}; }
  Json operator()(bool x) const { return x; }
  Json operator()(int64_t x) const { return x; }
  Json operator()(double x) const { return {{"real", real(x)}}; }
  Json operator()(const std::string& x) const { return x; }
  Json operator()(const std::vector<int64_t>& x) const { return {{"integers", x}}; }
  Json operator()(const std::vector<double>& x) const { return {{"reals", list_of(x, real)}}; }
  Json operator()(const std::vector<bool>& x) const { return {{"booleans", x}}; }
  Json operator()(DType x) const { return {{"dtype", name_of(x)}}; }
  Json operator()(const Symbol& x) const { return {{"symbol", x.name}}; }
};

Json write_nest(const Nest& nest) {
  struct Writer {
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(ValueRef x) const { return {{"value", x.id}}; }
    Json operator()(bool x) const { return x; }
    Json operator()(double x) const { return {{"real", real(x)}}; }
    Json operator()(const std::string& x) const { return x; }
    Json operator()(const std::vector<std::pair<std::string, Nest>>& table) const {
      Json entries = Json::array();
      for (const auto& [key, item] : table) entries.push_back(Json::array({key, write_nest(item)}));
      return {{"table", entries}};
    }
  };
  return std::visit(Writer{}, nest.node);
}

std::string to_hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

Json write_value(const Value& v) {
  return {{"id", v.id},
          {"shape", v.type.shape},
          {"dtype", name_of(v.type.dtype)},
          {"role", name_of(v.role)},
          {"requires_grad", v.requires_grad},
          {"name", v.name},
          {"producer", v.producer},
          {"data", to_hex(v.data)}};
}

Json write_node(const Node& n) {
  return {{"id", n.id},
          {"op", n.op},
          {"args", list_of(n.args,
                           [](const NamedArg& a) {
                             return Json::array({a.name, std::visit(ArgWriter{}, a.value)});
                           })},
          {"outputs", n.outputs},
          {"module", n.module},
          {"ordinal", n.ordinal},
          {"file", n.loc.file},
          {"line", n.loc.line},
          {"source_text", n.source_text},
          {"grad_enabled", n.context.grad_enabled},
          {"autocast", n.context.autocast},
          {"recompute_region", n.context.recompute_region}};
}

// --- reading -------------------------------------------------------------------------------------

[[noreturn]] void refuse(const std::string& path, const Json& got, std::string_view expected) {
  std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "…";
  fail(ErrorKind::state, "[graph.from_json] {}: {}; expected {}", path, text, expected);
}

int64_t read_int(const Json& j, const std::string& path) {
  const bool fits =
      j.is_number_integer() && !(j.is_number_unsigned() && j.get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits) refuse(path, j, "an integer");
  return j.get<int64_t>();
}
int read_id(const Json& j, const std::string& path) {
  const int64_t x = read_int(j, path);
  if (x < -1 || x > std::numeric_limits<int>::max()) refuse(path, j, "an id");
  return static_cast<int>(x);
}
bool read_bool(const Json& j, const std::string& path) {
  if (!j.is_boolean()) refuse(path, j, "true or false");
  return j.get<bool>();
}
std::string read_string(const Json& j, const std::string& path) {
  if (!j.is_string()) refuse(path, j, "a string");
  return j.get<std::string>();
}
double read_real(const Json& j, const std::string& path) {
  if (j == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (j == "inf") return std::numeric_limits<double>::infinity();
  if (j == "-inf") return -std::numeric_limits<double>::infinity();
  if (!j.is_number()) refuse(path, j, "a number");
  return j.get<double>();
}
DType read_dtype(const Json& j, const std::string& path) {
  const auto dtype = dtype_from_name(read_string(j, path));
  if (!dtype) refuse(path, j, "the name of a dtype");
  return *dtype;
}
std::string read_hex(const Json& j, const std::string& path) {
  constexpr std::string_view digits = "0123456789abcdef";
  const std::string text = read_string(j, path);
  if (text.size() % 2 != 0 || text.find_first_not_of(digits) != std::string::npos)
    refuse(path, j, "pairs of hexadecimal digits");
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes += static_cast<char>(digits.find(text[i]) * 16 + digits.find(text[i + 1]));
  return bytes;
}
ValueRef read_ref(const Json& j, const std::string& path) {
  return {read_id(j, path)};
}

template <class F>
auto read_list(const Json& j, const std::string& path, F one) {
  if (!j.is_array()) refuse(path, j, "a list");
  std::vector<decltype(one(j, path))> out;
  for (size_t i = 0; i < j.size(); ++i) out.push_back(one(j[i], fmt::format("{}[{}]", path, i)));
  return out;
}

// An object whose fields are taken one by one; `done` refuses what is left.
class Fields {
 public:
  Fields(const Json& j, std::string path) : j_(j), path_(std::move(path)) {
    if (!j.is_object()) refuse(path_, j, "an object");
  }
  template <class F>
  auto take(const char* key, F read) {
    const auto it = j_.find(key);
    if (it == j_.end()) refuse(path_, j_, fmt::format("a field '{}'", key));
    ++taken_;
    return read(*it, path_ + "." + key);
  }
  void done() {
    if (taken_ != j_.size()) refuse(path_, j_, fmt::format("{} fields", taken_));
  }

 private:
  const Json& j_;
  std::string path_;
  size_t taken_ = 0;
};

// The one entry of {"kind": content}.
std::pair<std::string, Json> tagged(const Json& j, const std::string& path) {
  if (!j.is_object() || j.size() != 1) refuse(path, j, "an object with one field");
  return {j.begin().key(), j.begin().value()};
}

Arg read_arg(const Json& j, const std::string& path) {
  if (j.is_null()) return std::monostate{};
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_string()) return j.get<std::string>();
  if (j.is_number_integer()) return read_int(j, path);
  const auto [kind, content] = tagged(j, path);
  if (kind == "value") return read_ref(content, path);
  if (kind == "values") return read_list(content, path, read_ref);
  if (kind == "real") return read_real(content, path);
  if (kind == "integers") return read_list(content, path, read_int);
  if (kind == "reals") return read_list(content, path, read_real);
  if (kind == "booleans") return read_list(content, path, read_bool);
  if (kind == "dtype") return read_dtype(content, path);
  if (kind == "symbol") return Symbol{read_string(content, path)};
  refuse(path, j, "a kind of argument");
}

Nest read_nest(const Json& j, const std::string& path) {
  if (j.is_null()) return {std::monostate{}};
  if (j.is_boolean()) return {j.get<bool>()};
  if (j.is_string()) return {j.get<std::string>()};
  const auto [kind, content] = tagged(j, path);
  if (kind == "value") return {read_ref(content, path)};
  if (kind == "real") return {read_real(content, path)};
  if (kind != "table") refuse(path, j, "a value, a real or a table");
  return {read_list(content, path, [](const Json& entry, const std::string& place) {
    if (!entry.is_array() || entry.size() != 2) refuse(place, entry, "a pair");
    return std::pair{read_string(entry[0], place), read_nest(entry[1], place)};
  })};
}

Value read_value(const Json& j, const std::string& path) {
  Fields f(j, path);
  Value v;
  v.id = f.take("id", read_id);
  v.type.shape = f.take(
      "shape", [](const Json& s, const std::string& p) { return read_list(s, p, read_int); });
  v.type.dtype = f.take("dtype", read_dtype);
  v.role = f.take("role", [](const Json& r, const std::string& p) {
    for (const Role role :
         {Role::input, Role::parameter, Role::buffer, Role::activation, Role::constant})
      if (r == name_of(role)) return role;
    refuse(p, r, "input, parameter, buffer, activation or constant");
  });
  v.requires_grad = f.take("requires_grad", read_bool);
  v.name = f.take("name", read_string);
  v.producer = f.take("producer", read_id);
  v.data = f.take("data", read_hex);
  f.done();
  return v;
}

NamedArg read_named_arg(const Json& j, const std::string& path) {
  if (!j.is_array() || j.size() != 2) refuse(path, j, "a pair of name and value");
  return {read_string(j[0], path), read_arg(j[1], path)};
}

std::vector<int> read_ids(const Json& j, const std::string& path) {
  return read_list(j, path, read_id);
}

Node read_node(const Json& j, const std::string& path) {
  Fields f(j, path);
  Node n;
  n.id = f.take("id", read_id);
  n.op = f.take("op", read_string);
  n.args = f.take(
      "args", [](const Json& a, const std::string& p) { return read_list(a, p, read_named_arg); });
  n.outputs = f.take("outputs", read_ids);
  n.module = f.take("module", read_string);
  n.ordinal = f.take("ordinal", read_id);
  n.loc.file = f.take("file", read_string);
  n.loc.line = f.take("line", read_id);
  n.source_text = f.take("source_text", read_string);
  n.context.grad_enabled = f.take("grad_enabled", read_bool);
  n.context.autocast = f.take("autocast", read_string);
  n.context.recompute_region = f.take("recompute_region", read_id);
  f.done();
  return n;
}

template <class F>
auto list_reader(F one) {
  return [one](const Json& j, const std::string& path) { return read_list(j, path, one); };
}
template <class F>
auto pair_reader(F one) {
  return list_reader([one](const Json& j, const std::string& path) {
    if (!j.is_array() || j.size() != 2) refuse(path, j, "a pair");
    return std::pair{one(j[0], path), one(j[1], path)};
  });
}

Json parse_text(std::string_view text) {
  const auto limit = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth)
      fail(ErrorKind::state, "[graph.from_json] nested deeper than {} levels", kMaxDepth);
    return true;
  };
  try {
    return Json::parse(text, limit);
  } catch (const Json::exception& e) {
    fail(ErrorKind::state, "[graph.from_json] not JSON: {}", e.what());
  }
}

}  // namespace

std::string to_json(const Arg& arg) {
  return std::visit(ArgWriter{}, arg).dump();
}
std::string to_json(const Nest& nest) {
  return write_nest(nest).dump();
}

std::string to_json(const Graph& g) {
  const auto pairs = [](const auto& list) {
    return list_of(list, [](const auto& p) { return Json::array({p.first, p.second}); });
  };
  const Json j = {{"format", kFormat},
                  {"version", kVersion},
                  {"name", g.name},
                  {"training", g.training},
                  {"values", list_of(g.values, write_value)},
                  {"nodes", list_of(g.nodes, write_node)},
                  {"inputs", g.inputs},
                  {"parameters", g.parameters},
                  {"buffers", g.buffers},
                  {"outputs", list_of(g.outputs, write_nest)},
                  {"buffer_updates", pairs(g.buffer_updates)},
                  {"aliases", pairs(g.aliases)}};
  return j.dump(1, ' ', false, Json::error_handler_t::replace);
}

Graph from_json(std::string_view text) {
  const Json j = parse_text(text);
  Fields f(j, "graph");
  const auto format = f.take("format", read_string);
  if (format != kFormat) refuse("graph.format", format, kFormat);
  const auto version = f.take("version", read_int);
  if (version > kVersion)
    fail(ErrorKind::state, "[graph.from_json] version {} is newer than this program's {}", version,
         kVersion);
  Graph g;
  g.name = f.take("name", read_string);
  g.training = f.take("training", read_bool);
  g.values = f.take("values", list_reader(read_value));
  g.nodes = f.take("nodes", list_reader(read_node));
  g.inputs = f.take("inputs", read_ids);
  g.parameters = f.take("parameters", read_ids);
  g.buffers = f.take("buffers", read_ids);
  g.outputs = f.take("outputs", list_reader(read_nest));
  g.buffer_updates = f.take("buffer_updates", pair_reader(read_id));
  g.aliases = f.take("aliases", pair_reader(read_string));
  f.done();
  if (const auto fault = find_fault(g))
    fail(ErrorKind::state, "[graph.from_json] graph '{}': {}", g.name, *fault);
  return g;
}

}  // namespace nns::graph
