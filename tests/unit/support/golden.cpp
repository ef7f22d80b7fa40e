// Golden texts and digests of Programs.
#include "support/golden.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/file.h"
#include "lower/program_json.h"

namespace nns::test {

void is_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/unit/golden/" + name + ".txt";  // from the top of the tree
  if (std::getenv("NNSCALER_UPDATE") != nullptr) write_file_atomic(path, text, "test");
  CHECK(text == read_file(path, "test"));
}

void Digest::add(const Programs& programs) {
  for (const lower::Lowered& lowered : programs.ranks) {
    ++programs_;
    for (const lower::Segment& segment : lowered.program.segments)
      instructions_ += static_cast<int64_t>(segment.instrs.size());
    peak_ = std::max(peak_, lower::memory(lowered.program).peak);
    for (const lower::Traffic& t : lower::traffic(lowered.program)) sent_ += t.bytes;
    const std::string json = lower::to_json(lowered);
    CHECK(lower::to_json(lower::from_json(json)) == json);
    hash_ = hash_bytes(json, hash_);
  }
}

std::string Digest::text() const {
  return fmt::format("{:4} programs, {:6} instructions, peak {:6}, sent {:7}, {}", programs_,
                     instructions_, peak_, sent_, hex(hash_));
}

}  // namespace nns::test
