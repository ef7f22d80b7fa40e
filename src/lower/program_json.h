// JSON form of a Program and what lowering says of it: complete, so that a program which was
// written runs again without its graph being lowered.
#pragma once

#include "lower/lower.h"

namespace nns::lower {

// What writer and reader agree on.
inline constexpr const char* kProgramKind = "nnscaler.program";
inline constexpr int kProgramFormat = 3;
inline constexpr const char* kSegmentKinds[] = {"forward", "backward", "weight"};

std::string_view name_of(SlotRole role);
std::string_view name_of(InstrKind kind);

std::string to_json(const Lowered& lowered);
// Reads untrusted bytes: throws the state Error "[program.from_json] PLACE: …" unless every field
// is there with its type and every slot, box and range lies within the program.
Lowered from_json(std::string_view text);

}  // namespace nns::lower
