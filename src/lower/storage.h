// Storage: which slots of a program look at one piece of memory. Exact where operators say so; a
// reshape counts as a view of what is known to be contiguous and as a copy of anything else.
#pragma once

#include <string_view>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

class Storage {
 public:
  // `strided`: slots made elsewhere whose elements do not lie in row-major order.
  explicit Storage(const Program& program, const std::vector<int>& strided = {});

  // The slot whose memory `slot` looks at: itself, or the one it is a view of.
  int root(int slot) const { return root_[static_cast<size_t>(slot)]; }
  bool is_contiguous(int slot) const { return contiguous_[static_cast<size_t>(slot)]; }
  // All slots with this root, ascending.
  const std::vector<int>& members(int root) const { return members_[static_cast<size_t>(root)]; }
  // Bytes of the memory behind a root.
  int64_t bytes(int root) const;
  // Whether the instruction takes new memory when it runs.
  bool allocates(const Instr& instr) const;

 private:
  void see(const Instr& instr);

  const Program& program_;
  std::vector<int> root_;
  std::vector<bool> contiguous_;
  std::vector<std::vector<int>> members_;
};

}  // namespace nns::lower
