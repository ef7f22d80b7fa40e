#include "cost/hardware.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "cost/presets.h"
#include "cost/profile.h"
#include "job/value.h"

namespace nns::cost {

std::string_view name_of(Origin origin) {
  static constexpr std::string_view names[] = {"measured", "interpolated", "modelled"};
  return names[static_cast<size_t>(origin)];
}

std::vector<std::string> known_hardware() {
  std::vector<std::string> names;
  for (const Hardware& h : presets()) names.push_back(h.name);
  std::sort(names.begin(), names.end());
  return names;
}

Hardware find_hardware(const std::string& text) {
  if (text.ends_with(".yaml") || text.ends_with(".yml"))
    return parse_hardware(read_file(text, "cost.hardware"), text);
  if (text.ends_with(".json")) return parse_profile(read_file(text, "cost.profile"), text);
  const size_t x = text.rfind('x');
  const bool counted = x != std::string::npos && x + 1 < text.size() &&
                       text.find_first_not_of("0123456789", x + 1) == std::string::npos;
  for (const Hardware& known : presets()) {
    if (text == known.name) return known;
    if (!counted || text.substr(0, x) != known.name) continue;
    Hardware out = known;
    const char *first = text.data() + x + 1, *last = text.data() + text.size();
    if (std::from_chars(first, last, out.devices_per_host).ec != std::errc{} ||
        out.devices_per_host < 1)
      throw Error(ErrorKind::usage,
                  fmt::format("[cost.hardware] '{}': {} devices a host; expected 1 at least", text,
                              std::string(first, last)),
                  fmt::format("{}x8: hosts of eight devices", known.name));
    out.links.devices_per_node = out.devices_per_host;
    return out;
  }
  const std::string near = job::nearest(counted ? text.substr(0, x) : text, known_hardware());
  throw Error(ErrorKind::usage,
              fmt::format("[cost.hardware] no hardware '{}'; known: {}", text,
                          fmt::join(known_hardware(), ", ")),
              near.empty() ? "'measured' is this machine (nnscaler profile); describe others in a "
                             "file: --hardware cluster.yaml (docs/planner.md)"
                           : fmt::format("did you mean '{}'?", near));
}

double roofline(double flops, int64_t bytes, int64_t largest, DType dtype, const Hardware& on) {
  const double elements = static_cast<double>(std::max<int64_t>(largest, 1));
  const double fill = elements / (elements + on.half_filled);
  const auto peak = on.flops.find(dtype);
  // Types without products of their own run as 32-bit floats do.
  const double rate = peak != on.flops.end() ? peak->second : on.flops.at(DType::f32);
  const double work = flops / (rate * on.product_efficiency * fill);
  const double traffic = static_cast<double>(bytes) / (on.memory_bandwidth * on.memory_efficiency);
  return std::max({work, traffic, on.start});
}

}  // namespace nns::cost
