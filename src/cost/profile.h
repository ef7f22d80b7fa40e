// A profile: what calls and collectives took on a machine, measured as they run, from the JSON that
// `nnscaler profile` writes. Its bytes are anybody's: what is not a profile is refused.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cost/hardware.h"

namespace nns::cost {

struct MeasuredCall {
  double seconds = 0;
  double model = 0;  // what the machine's figures alone would say
};

// What an optimizer step takes beside sums of gradients.
struct MeasuredStep {
  double seconds_per_byte = 0;  // of the weights that a rank updates
  double seconds = 0;           // and in any case: the trainer's own part
};

// Seconds and where they come from.
struct Figure {
  double seconds = 0;
  Origin origin = Origin::modelled;
};

struct Profile {
  std::string host, version, made, processor;
  int ranks = 1, threads = 1;                              // at once on the host; of each
  std::map<std::string, MeasuredCall, std::less<>> calls;  // by lower::call_key
  // By collective and number of ranks: payload bytes of a rank, ascending, with their seconds.
  std::map<std::pair<std::string, int>, std::vector<std::pair<double, double>>> links;
  std::map<std::string, MeasuredStep, std::less<>> steps;  // by optimizer

  // Of a call by its key, measured; else from the call of the same operator that the model finds
  // nearest to it, up to a factor of 16; nothing where there is none. `model`: seconds by the
  // machine's figures.
  std::optional<Figure> call(std::string_view key, double model) const;
  std::optional<MeasuredStep> step(std::string_view optimizer) const;
  // Of a collective by the bytes of the tensor: between two sizes in proportion, beyond them as the
  // nearest two go on.
  std::optional<Figure> link(std::string_view collective, int ranks, double bytes) const;
};

// The hardware of a profile's text, with the profile in it. A state Error says what of `file` is
// not a profile of this format.
Hardware parse_profile(std::string_view text, const std::string& file);

// Where `nnscaler profile` keeps what it measured: in the user's cache; empty where there is no
// home.
std::string profile_path();

// The measured hardware of this host. A usage Error, with what to do, where there is none, it does
// not read, or it is of another host or version.
Hardware measured_hardware(const std::string& path, std::string_view host,
                           std::string_view version);

}  // namespace nns::cost
