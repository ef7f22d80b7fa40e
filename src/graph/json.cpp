// JSON form of a graph: complete (source places too), keys in a fixed order, read back strictly:
// every field must be there with its type, unknown fields and damaged wiring are refused.
#include <cmath>

#include "base/error.h"
#include "graph/json_reader.h"

namespace nns::graph {
namespace {

constexpr const char* kFormat = "nnscaler graph";
constexpr int kVersion = 1;

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

}  // namespace

Json write_arg(const Arg& arg) {
  return std::visit(ArgWriter{}, arg);
}

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
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

namespace {

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
          {"args",
           list_of(n.args,
                   [](const NamedArg& a) { return Json::array({a.name, write_arg(a.value)}); })},
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

Value read_value(const Item& j, const Path& path) {
  Fields f(j, path);
  Value v;
  v.id = f.take("id", read_id);
  v.type.shape =
      f.take("shape", [](const Item& s, const Path& p) { return read_list(s, p, read_int); });
  v.type.dtype = f.take("dtype", read_dtype);
  v.role = f.take("role", [](const Item& r, const Path& p) {
    for (const Role role :
         {Role::input, Role::parameter, Role::buffer, Role::activation, Role::constant})
      if (r.equals(name_of(role))) return role;
    refuse(p, r, "input, parameter, buffer, activation or constant");
  });
  v.requires_grad = f.take("requires_grad", read_bool);
  v.name = f.take("name", read_string);
  v.producer = f.take("producer", read_id);
  v.data = f.take("data", read_hex);
  f.done();
  return v;
}

std::vector<int> read_ids(const Item& j, const Path& path) {
  return read_list(j, path, read_id);
}

Node read_node(const Item& j, const Path& path) {
  Fields f(j, path);
  Node n;
  n.id = f.take("id", read_id);
  n.op = f.take("op", read_string);
  n.args =
      f.take("args", [](const Item& a, const Path& p) { return read_list(a, p, read_named_arg); });
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

}  // namespace

std::string to_json(const Arg& arg) {
  return write_arg(arg).dump();
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
  const JsonText parsed = parse_json(text, "graph");
  Fields f(parsed.root(), "graph");
  const auto format = f.take("format", read_string);
  if (format != kFormat) refuse("graph.format", fmt::format("\"{}\"", format), kFormat);
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
  g.buffer_updates = f.take("buffer_updates", pair_reader(read_id, read_id));
  g.aliases = f.take("aliases", pair_reader(read_string, read_string));
  f.done();
  if (const auto fault = find_fault(g))
    fail(ErrorKind::state, "[graph.from_json] graph '{}': {}", g.name, *fault);
  return g;
}

}  // namespace nns::graph
