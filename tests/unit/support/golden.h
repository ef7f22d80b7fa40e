// Texts of before (tests/unit/golden), and short ones of many Programs: what changes in a Program,
// its memory or its messages shows as a difference. NNSCALER_UPDATE=1 writes them anew.
#pragma once

#include <string>

#include "support/interpreter.h"

namespace nns::test {

// Checks that `text` is that of tests/unit/golden/NAME.txt.
void is_golden(const std::string& name, const std::string& text);

// Programs in one line: how many, their instructions, peak, bytes sent, and a hash of their JSON.
// Their JSON is read back, which must not change it.
class Digest {
 public:
  void add(const Programs& programs);
  std::string text() const;

 private:
  int programs_ = 0;
  int64_t instructions_ = 0, peak_ = 0, sent_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace nns::test
