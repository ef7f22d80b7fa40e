// Many tensors in few words: elements of a table that follow each other are spelled as a range, and
// what changes evenly from turn to turn of a loop as a formula of its variable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nns::codegen {

// More items than this are gathered into ranges and tables: LuaJIT allows about 200 arguments,
// locals and results.
inline constexpr size_t kMany = 16;

// The variable `i` of a loop: from + by · turn, where `by` is 1 or -1.
struct Numbering {
  int64_t from = 0, by = 1;
  int64_t at(size_t turn) const { return from + by * static_cast<int64_t>(turn); }
};

// "i + 3": the number that is `first` in turn 0 and grows by `growth` a turn.
std::string growing(int64_t first, int64_t growth, const Numbering& i);

// The same for expressions: "s.tanh[i]" for s.tanh[0], s.tanh[1], …; a number in brackets may grow.
// Nothing when they differ otherwise.
std::optional<std::string> growing(const std::vector<std::string>& texts, const Numbering& i);

// How much the one number grows in which two expressions differ; nothing when they differ
// otherwise.
std::optional<std::pair<int64_t, int64_t>> growth(const std::string& a, const std::string& b);

// Elements of `table` from `first` to `last`, ascending or descending; or one expression.
struct Piece {
  std::string table;
  int64_t first = 0, last = 0;
  std::string single;
};
// Expressions as pieces, in order; of kMany or less each stands alone.
std::vector<Piece> pieces(const std::vector<std::string>& texts);

// A Lua table of these tensors: "{ a, b }", "items(tanh, 0, 999)", "concat({ a }, items(…))".
std::string list_text(const std::vector<std::string>& texts);

}  // namespace nns::codegen
