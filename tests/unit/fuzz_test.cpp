// Sound files with random damage, run through the readers for a moment: what is found is a fault of
// ours. tests/fuzz/run does the same for long, guided by coverage.
#include "../fuzz/targets.h"
#include "support/models.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "base/file.h"

using namespace nns;

namespace {

// Words of the formats, which random bytes would not find.
const std::vector<std::string> kWords = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         "\"",
                                         ":",
                                         ",",
                                         "-",
                                         "null",
                                         "true",
                                         "1e309",
                                         "-1",
                                         "0",
                                         "18446744073709551616",
                                         "9223372036854775807",
                                         "\"dtype\"",
                                         "\"shape\"",
                                         "\"data_offsets\"",
                                         "\"type\"",
                                         "\"BPE\"",
                                         "\"vocab\"",
                                         "\"merges\"",
                                         "\"Split\"",
                                         "\"Sequence\"",
                                         "\"Regex\"",
                                         "(a+)+$",
                                         "\xff",
                                         "$(a)",
                                         "&a",
                                         "*a",
                                         "<<: *a",
                                         "- ",
                                         "\n",
                                         "  ",
                                         "|",
                                         "args:",
                                         "type:",
                                         "!!binary",
                                         std::string(1, '\0')};

std::string damaged(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t times = 1 + below(4); times > 0; --times) {
    const size_t at = below(text.size() + 1),
                 count = below(std::min<size_t>(text.size() - at, 40) + 1);
    switch (below(5)) {
      case 0:
        text.erase(at, count);
        break;
      case 1:
        text.insert(at, kWords[below(kWords.size())]);
        break;
      case 2:
        text.replace(at, count, kWords[below(kWords.size())]);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, count));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random());
    }
  }
  return text;
}

template <class Read>
void try_damage(const std::string& sound, int times, const Read& read) {
  read(sound);
  std::mt19937 random(1);
  for (int i = 0; i < times; ++i) {
    const std::string bytes = damaged(sound, random);
    INFO("input " << i << " of " << sound.size() << " bytes");
    REQUIRE_NOTHROW(read(bytes));
  }
}

}  // namespace

TEST_CASE("damaged safetensors are read or refused", "[fuzz]") {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"I64","shape":[],"data_offsets":[24,32]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  try_damage(file + header + std::string(32, '\1'), 20000, fuzz::safetensors);
}

TEST_CASE("damaged tokenizers are read or refused", "[fuzz]") {
  for (const char* name : {"gpt2", "llama3", "added"})
    try_damage(read_file(fmt::format("tests/lua/tokenizers/{}.json", name), "fuzz"), 400,
               fuzz::tokenizer);
}

TEST_CASE("damaged graphs are read or refused", "[fuzz]") {
  graph::Graph g = *test::oddities();
  g.nodes[0].loc = {"models/\xc3\xa4 \"mlp\".lua", 10};
  try_damage(graph::to_json(g), 5000, fuzz::json);
}

TEST_CASE("damaged jobs are read or refused", "[fuzz]") {
  for (const char* name : {"quickstart", "nanogpt", "llama3_8b"})
    try_damage(read_file(fmt::format("configs/{}.yaml", name), "fuzz"), 1000, fuzz::yaml);
}
