// Hardware as the planner sees it: devices, hosts, links. Known machines have names; any cluster is
// described in YAML. What a call costs on it follows from the call's record.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cost/links.h"

namespace nns::cost {

struct Profile;

// Where a figure comes from.
enum class Origin { measured, interpolated, modelled };
std::string_view name_of(Origin origin);

struct Hardware {
  std::string name;
  int devices_per_host = 8;
  int64_t memory = 0;                  // bytes of a device
  double memory_bandwidth = 0;         // peak, bytes a second
  std::map<DType, double> flops = {};  // peak of products by dtype, a second
  double start = 0;                    // seconds that a call takes at least
  // Elements of the largest tensor of a call with which the device does half of what it does with
  // many.
  double half_filled = 0;
  double product_efficiency = 1, memory_efficiency = 1;  // of the peaks, reached by large calls
  LinkCosts links = {};
  Origin origin = Origin::modelled;             // of its figures
  std::shared_ptr<const Profile> profile = {};  // of calls and links, where it was measured
};

// Names of the machines that are known, sorted.
std::vector<std::string> known_hardware();

// The hardware of a text: a name ("h100"), a name with the devices of a host ("h100x4"), or the
// path of a description ("cluster.yaml") or of a profile ("profile.json"). Throws a usage Error
// that lists the known names for any other, for no devices, and for a description that lacks
// something.
Hardware find_hardware(const std::string& text);
// Of a YAML text; `file` is for messages.
Hardware parse_hardware(std::string_view text, const std::string& file);

// Seconds of a call that reads and writes so many bytes, whose largest tensor has so many elements
// and whose results are of this dtype: the longer of its products and its memory traffic, and no
// less than a start.
double roofline(double flops, int64_t bytes, int64_t largest, DType dtype, const Hardware& on);

}  // namespace nns::cost
