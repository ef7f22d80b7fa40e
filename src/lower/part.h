// Parts of calls that are more than the call on local tensors (operators/part.h), placed as the
// plan says.
#pragma once

#include <optional>

#include "lower/exchange.h"
#include "lower/placement.h"
#include "lower/tape.h"

namespace nns::lower {

struct PartCall {
  const graph::Graph& graph;
  const graph::Node& node;
  const NodePlacement& placed;
  const Exchange& exchange;
};

// Emits this device's part of a call with its local operands; returns its outputs, or nothing where
// the operator on the local tensors alone is the part.
std::optional<std::vector<Ref>> emit_part(const PartCall& call, const std::vector<NamedArg>& args,
                                          const CallSite& site, Tape& tape, Emitter& emitter);

}  // namespace nns::lower
