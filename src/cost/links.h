// Links between devices: what a collective or a message costs, by kind, bytes and size of the
// group. The one place that says so: the adapter search, the planner and its simulator ask here.
#pragma once

#include <cstdint>
#include <vector>

#include "operators/record.h"

namespace nns::cost {

using operators::Communication;

// Alpha-beta model of a ring (Thakur, Rabenseifner, Gropp 2005; NCCL runs large ones as rings).
struct LinkCosts {
  double call = 20e-6;              // seconds a collective takes to start
  double latency = 1e-6;            // seconds a message
  double seconds_per_byte = 1e-10;  // inside a host
  double across_nodes = 10;         // factor on a byte between hosts
  int devices_per_node = 8;
  bool operator==(const LinkCosts&) const = default;
};

// Whether ranks lie on several hosts.
bool crosses_hosts(const std::vector<int64_t>& ranks, const LinkCosts& costs);
bool crosses_hosts(const std::vector<int>& ranks, const LinkCosts& costs);

// Seconds of a call in which the busiest device sends so many bytes in so many messages.
double seconds_of(int64_t bytes, int messages, bool across, const LinkCosts& costs);

// Payload bytes that one device sends in a ring collective over n ranks of a tensor of so many
// elements (all of what is gathered, reduced, scattered; the local part of what is exchanged):
// all-reduce 2(n-1)/n, others (n-1)/n of the padded size; 0 for what is no collective.
int64_t ring_bytes(Communication kind, int64_t elements, int64_t element_bytes, int ranks);
// Messages that one device sends in it.
int ring_messages(Communication kind, int ranks);

// Seconds of a collective: elements as `ring_bytes` takes them.
double collective_seconds(Communication kind, int64_t elements, int64_t element_bytes, int ranks,
                          bool across, const LinkCosts& costs);

// Seconds that the sum of a gradient takes once a step, over so many ranks. Gradients share
// buckets of `bucket_bytes`, so each pays for the part of a start that its bytes fill.
double gradient_sum_seconds(int64_t bytes, int ranks, bool across, int64_t bucket_bytes,
                            const LinkCosts& costs);

}  // namespace nns::cost
