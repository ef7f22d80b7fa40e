// Clusters described in YAML:
//
//   name: lab                       # optional
//   devices_per_host: 4
//   device: h100                    # a known one, or
//   device: { memory: 80e9, memory_bandwidth: 3.35e12, flops: { float32: 67e12, bfloat16: 989e12 }
//   } links: { inside: 450e9, across: 50e9 }    # bytes a second, one way; also latency, start
#include <fmt/ranges.h>

#include "base/error.h"
#include "cost/hardware.h"
#include "cost/presets.h"
#include "job/parse.h"

namespace nns::cost {
namespace {

using job::Value;

// A map whose fields are asked for by name; what nobody asked for is refused.
class Fields {
 public:
  Fields(const Value& map, std::string path, std::vector<std::string> names)
      : map_(map), path_(std::move(path)) {
    if (!map.is(Value::Kind::map))
      fail(ErrorKind::usage, "[cost.hardware] {}: {} is {}; expected a table with {}",
           to_string(map.mark), path_.empty() ? "the file" : path_, job::describe(map),
           fmt::join(names, ", "));
    for (const job::Field& field : map.fields) {
      if (std::find(names.begin(), names.end(), field.key) != names.end()) continue;
      const std::string near = job::nearest(field.key, names);
      throw Error(ErrorKind::usage,
                  fmt::format("[cost.hardware] {}: no key '{}'; expected {}",
                              to_string(field.value.mark), name(field.key), fmt::join(names, ", ")),
                  near.empty() ? "" : fmt::format("did you mean '{}'?", name(near)));
    }
  }

  std::string name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  const Value& must(const std::string& key, const char* what) const {
    const Value* found = map_.find(key);
    if (found == nullptr || found->is(Value::Kind::null))
      fail(ErrorKind::usage, "[cost.hardware] {}: '{}' is missing; expected {}",
           to_string(map_.mark), name(key), what);
    return *found;
  }
  double positive(const std::string& key, const char* what) const {
    return positive(must(key, what), key, what);
  }
  double positive(const Value& value, const std::string& key, const char* what) const {
    if (!value.is(Value::Kind::number) || !(value.number > 0))
      fail(ErrorKind::usage, "[cost.hardware] {}: '{}' is {}; expected {}", to_string(value.mark),
           name(key), job::describe(value), what);
    return value.number;
  }
  double positive_or(const std::string& key, const char* what, double otherwise) const {
    const Value* found = map_.find(key);
    return found == nullptr ? otherwise : positive(*found, key, what);
  }

 private:
  const Value& map_;
  std::string path_;
};

Hardware device_of(const Value& value) {
  if (value.is(Value::Kind::text)) {
    for (const Hardware& known : presets())
      if (known.name == value.text) return known;
    throw Error(ErrorKind::usage,
                fmt::format("[cost.hardware] {}: no device '{}'; known: {}", to_string(value.mark),
                            value.text, fmt::join(known_hardware(), ", ")),
                "or a table with memory, memory_bandwidth, flops");
  }
  // What a description leaves out is as with a GPU that is known.
  Hardware out = *std::find_if(presets().begin(), presets().end(),
                               [](const Hardware& h) { return h.name == "h100"; });
  const Fields device(value, "device",
                      {"memory", "memory_bandwidth", "flops", "start", "half_filled",
                       "product_efficiency", "memory_efficiency"});
  out.memory = static_cast<int64_t>(device.positive("memory", "bytes of a device"));
  out.memory_bandwidth = device.positive("memory_bandwidth", "bytes a second");
  out.start = device.positive_or("start", "seconds", out.start);
  out.half_filled = device.positive_or("half_filled", "elements", out.half_filled);
  out.product_efficiency =
      device.positive_or("product_efficiency", "a share of the peak", out.product_efficiency);
  out.memory_efficiency =
      device.positive_or("memory_efficiency", "a share of the peak", out.memory_efficiency);
  const Value& flops = device.must("flops", "operations a second by dtype: { float32: 67e12 }");
  const Fields rates(flops, "device.flops", {"float64", "float32", "bfloat16", "float16"});
  out.flops.clear();
  for (const job::Field& field : flops.fields)
    out.flops[*dtype_from_name(field.key)] =
        rates.positive(field.value, field.key, "operations a second");
  rates.must("float32", "operations a second");
  return out;
}

}  // namespace

Hardware parse_hardware(std::string_view text, const std::string& file) {
  const Value root = job::parse_yaml(text, file);
  const Fields fields(root, "", {"name", "devices_per_host", "device", "links"});
  Hardware out = device_of(fields.must("device", "a known device, or a table"));
  const Value* name = root.find("name");
  out.name = name != nullptr && name->is(Value::Kind::text) ? name->text : file;
  const char* count = "devices of a host, 1 at least";
  const double devices = fields.positive("devices_per_host", count);
  if (devices != static_cast<int>(devices))
    fail(ErrorKind::usage, "[cost.hardware] {}: 'devices_per_host' is {}; expected {}",
         to_string(root.find("devices_per_host")->mark), devices, count);
  out.devices_per_host = static_cast<int>(devices);
  const Fields links(fields.must("links", "{ inside: bytes a second, across: bytes a second }"),
                     "links", {"inside", "across", "latency", "start"});
  const char* rate = "bytes a second, one way";
  const double inside = links.positive("inside", rate), across = links.positive("across", rate);
  out.links = {.call = links.positive_or("start", "seconds", out.links.call),
               .latency = links.positive_or("latency", "seconds", out.links.latency),
               .seconds_per_byte = 1 / inside,
               .across_nodes = inside / across,
               .devices_per_node = out.devices_per_host};
  return out;
}

}  // namespace nns::cost
