#include "cost/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace nns::cost {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMostBytes = 256 << 20;
constexpr double kFar = 16;  // as far as a call may lie from a measured one to follow it

double positive(const json& j, const char* key) {
  const double value = j.at(key).get<double>();
  if (!std::isfinite(value) || value <= 0)
    fail(ErrorKind::state, "[cost.profile] '{}' is {}; expected a positive number", key, value);
  return value;
}

int count(const json& j, const char* key) {
  const double value = positive(j, key);
  if (value > 1e6 || value != std::floor(value))
    fail(ErrorKind::state, "[cost.profile] '{}' is {}; expected a whole number", key, value);
  return static_cast<int>(value);
}

double at_least_0(const json& j, const char* key) {
  const double value = j.at(key).get<double>();
  if (!std::isfinite(value) || value < 0 || value > 1e18)
    fail(ErrorKind::state, "[cost.profile] '{}' is {}; expected a number of at least 0", key,
         value);
  return value;
}

DType dtype_at(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) fail(ErrorKind::state, "[cost.profile] no dtype '{}'", name);
  return *dtype;
}

// What the figures of the machine say of a call.
double model_of(const json& call, const Hardware& on) {
  return roofline(at_least_0(call, "flops"), static_cast<int64_t>(at_least_0(call, "bytes")),
                  static_cast<int64_t>(at_least_0(call, "largest")),
                  dtype_at(call.at("dtype").get<std::string>()), on);
}

LinkCosts links_of(const json& j, int devices) {
  return {.call = positive(j, "call"),
          .latency = positive(j, "latency"),
          .seconds_per_byte = positive(j, "seconds_per_byte"),
          .across_nodes = positive(j, "across_nodes"),
          .devices_per_node = devices};
}

Profile read(const json& j, const Hardware& on) {
  Profile out;
  const json& machine = j.at("machine");
  out.host = machine.at("host");
  out.processor = machine.at("processor");
  out.version = j.at("version");
  out.made = j.at("made");
  out.ranks = count(machine, "ranks");
  out.threads = count(machine, "threads");
  for (const json& c : j.at("calls"))
    out.calls[c.at("call").get<std::string>()] = {positive(c, "seconds"), model_of(c, on)};
  for (const json& l : j.at("links"))
    out.links[{l.at("collective").get<std::string>(), count(l, "ranks")}].emplace_back(
        positive(l, "bytes"), positive(l, "seconds"));
  for (auto& [key, points] : out.links) std::sort(points.begin(), points.end());
  for (const json& s : j.at("steps"))
    out.steps[s.at("optimizer").get<std::string>()] = {positive(s, "seconds_per_byte"),
                                                       at_least_0(s, "seconds")};
  return out;
}

std::string_view operator_of(std::string_view key) {
  return key.substr(0, key.find('('));
}

// What links did between two points (x, y), or beyond them.
double along(std::pair<double, double> a, std::pair<double, double> b, double x) {
  if (a.first == b.first) return std::max(a.second, b.second);
  return a.second + (b.second - a.second) * (x - a.first) / (b.first - a.first);
}

}  // namespace

std::optional<Figure> Profile::call(std::string_view key, double model) const {
  if (const auto known = calls.find(key); known != calls.end())
    return Figure{known->second.seconds, Origin::measured};
  const std::string_view op = operator_of(key);
  const MeasuredCall* nearest = nullptr;
  double least = std::log(kFar);
  for (auto it = calls.lower_bound(op); it != calls.end() && operator_of(it->first) == op; ++it) {
    const double distance = std::abs(std::log(model / it->second.model));
    if (distance > least) continue;
    least = distance;
    nearest = &it->second;
  }
  if (nearest == nullptr) return std::nullopt;
  return Figure{nearest->seconds * model / nearest->model, Origin::interpolated};
}

std::optional<MeasuredStep> Profile::step(std::string_view optimizer) const {
  const auto known = steps.find(optimizer);
  return known == steps.end() ? std::nullopt : std::optional(known->second);
}

std::optional<Figure> Profile::link(std::string_view collective, int ranks, double bytes) const {
  const auto known = links.find({std::string(collective), ranks});
  if (known == links.end()) return std::nullopt;
  const auto& points = known->second;
  const auto above = std::lower_bound(points.begin(), points.end(), std::pair(bytes, 0.0));
  if (above != points.end() && above->first == bytes)
    return Figure{above->second, Origin::measured};
  if (points.size() == 1)
    return Figure{points[0].second * std::max(1.0, bytes / points[0].first), Origin::interpolated};
  if (above == points.begin())  // a start: no message takes less
    return Figure{points[0].second, Origin::interpolated};
  const auto next = above == points.end() ? std::prev(above) : above;
  return Figure{std::max(along(*std::prev(next), *next, bytes), points[0].second),
                Origin::interpolated};
}

Hardware parse_profile(std::string_view text, const std::string& file) {
  if (text.size() > kMostBytes)
    fail(ErrorKind::state, "[cost.profile] {} has {} bytes; expected {} at most", file, text.size(),
         kMostBytes);
  try {
    const json j = json::parse(text);
    if (j.at("kind") != "nnscaler.profile")
      fail(ErrorKind::state, "[cost.profile] {} is not a profile: kind is {}", file,
           j.at("kind").dump());
    if (j.at("format") != kFormat)
      throw Error(ErrorKind::state,
                  fmt::format("[cost.profile] {} has format {}; this version reads {}", file,
                              j.at("format").dump(), kFormat),
                  "measure anew: nnscaler profile");
    const json& figures = j.at("figures");
    Hardware out;
    out.memory = static_cast<int64_t>(positive(figures, "memory"));
    out.memory_bandwidth = positive(figures, "memory_bandwidth");
    out.start = positive(figures, "start");
    out.half_filled = positive(figures, "half_filled");
    for (const auto& [name, rate] : figures.at("flops").items())
      out.flops[dtype_at(name)] = positive(figures.at("flops"), name.c_str());
    if (!out.flops.contains(DType::f32))
      fail(ErrorKind::state, "[cost.profile] {}: 'figures.flops' has no float32", file);
    auto profile = std::make_shared<Profile>(read(j, out));
    out.name = fmt::format("measured ({}, {} rank(s) of {} thread(s))", profile->processor,
                           profile->ranks, profile->threads);
    out.devices_per_host = profile->ranks;
    out.links = links_of(figures.at("links"), profile->ranks);
    out.origin = Origin::measured;
    out.profile = std::move(profile);
    return out;
  } catch (const json::exception& e) {
    throw Error(ErrorKind::state, fmt::format("[cost.profile] {}: {}", file, e.what()),
                "measure anew: nnscaler profile");
  }
}

std::string profile_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return fmt::format("{}/nnscaler/profile.json", cache);
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return fmt::format("{}/.cache/nnscaler/profile.json", home);
}

Hardware measured_hardware(const std::string& path, std::string_view host,
                           std::string_view version) {
  const std::string hint = "measure this machine: nnscaler profile";
  if (path.empty() || !std::filesystem::exists(path))
    throw Error(ErrorKind::usage,
                fmt::format("[cost.profile] this machine has no profile: {}",
                            path.empty() ? "neither HOME nor XDG_CACHE_HOME is set" : path),
                hint);
  Hardware out = parse_profile(read_file(path, "cost.profile"), path);
  const auto refuse = [&](const char* what, std::string_view theirs, std::string_view ours) {
    throw Error(ErrorKind::usage,
                fmt::format("[cost.profile] {} is of another {}, '{}'; expected '{}'", path, what,
                            theirs, ours),
                hint);
  };
  if (out.profile->host != host) refuse("host", out.profile->host, host);
  if (out.profile->version != version) refuse("version", out.profile->version, version);
  return out;
}

}  // namespace nns::cost
