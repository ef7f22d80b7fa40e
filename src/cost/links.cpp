#include "cost/links.h"

#include <algorithm>

namespace nns::cost {
namespace {

template <class Ranks>
bool crosses(const Ranks& ranks, const LinkCosts& costs) {
  return std::any_of(ranks.begin(), ranks.end(), [&](auto rank) {
    return rank / costs.devices_per_node != ranks[0] / costs.devices_per_node;
  });
}

}  // namespace

bool crosses_hosts(const std::vector<int64_t>& ranks, const LinkCosts& costs) {
  return crosses(ranks, costs);
}
bool crosses_hosts(const std::vector<int>& ranks, const LinkCosts& costs) {
  return crosses(ranks, costs);
}

double seconds_of(int64_t bytes, int messages, bool across, const LinkCosts& costs) {
  const double byte = costs.seconds_per_byte * (across ? costs.across_nodes : 1);
  return costs.call + messages * costs.latency + static_cast<double>(bytes) * byte;
}

int64_t ring_bytes(Communication kind, int64_t elements, int64_t element_bytes, int ranks) {
  const int64_t n = ranks;
  const int64_t part = (elements + n - 1) / n;
  switch (kind) {
    case Communication::all_reduce:
      return 2 * (n - 1) * part * element_bytes;
    case Communication::all_gather:
    case Communication::reduce_scatter:
    case Communication::scatter_gradient:
    case Communication::all_to_all:
    case Communication::exchange:  // taken to go to all alike
      return (n - 1) * part * element_bytes;
    case Communication::rotate:
    case Communication::zigzag:  // two halves at most
      return elements * element_bytes;
    default:
      return 0;
  }
}

int ring_messages(Communication kind, int ranks) {
  if (kind == Communication::rotate) return 1;
  if (kind == Communication::zigzag) return 2;
  return kind == Communication::all_reduce ? 2 * (ranks - 1) : ranks - 1;
}

double collective_seconds(Communication kind, int64_t elements, int64_t element_bytes, int ranks,
                          bool across, const LinkCosts& costs) {
  return seconds_of(ring_bytes(kind, elements, element_bytes, ranks), ring_messages(kind, ranks),
                    across, costs);
}

double gradient_sum_seconds(int64_t bytes, int ranks, bool across, int64_t bucket_bytes,
                            const LinkCosts& costs) {
  if (ranks < 2) return 0;
  const double whole = static_cast<double>(bytes);
  const double start =
      seconds_of(0, ring_messages(Communication::all_reduce, ranks), across, costs);
  const double sent = 2.0 * (ranks - 1) / ranks * whole;
  return start * whole / static_cast<double>(bucket_bytes) +
         sent * costs.seconds_per_byte * (across ? costs.across_nodes : 1);
}

}  // namespace nns::cost
