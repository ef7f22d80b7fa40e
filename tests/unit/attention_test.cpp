// Which kernel attention gets, by device, dtype, width and lengths.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <set>

#include "call.h"
#include "lower/lower.h"
#include "support/graph_text.h"

using namespace nns;

namespace {

// What of attention is in the program of one device: "own", its fused operator; "drops", that with
// dropout; "parts", products and a softmax of their own, whose scores are kept for backward.
struct Case {
  std::string dtype = "bfloat16";
  int width = 16, keys = 6;
  bool causal = true, mask = false;
  double dropout = 0;
};

std::string made_of(const Case& c, const std::string& device) {
  const std::string text = fmt::format(
      "graph \"Attention\" training\n"
      "parameter %q \"q\": {0}[2, 4, 6, {1}] grad\n"
      "parameter %k \"k\": {0}[2, 4, {2}, {1}] grad\n"
      "input %m \"m\": {0}[6, {2}]\n"
      "%a = aten::scaled_dot_product_attention(query=%q, key=%k, value=%k, attn_mask={3}, "
      "dropout_p={4}, is_causal={5})\n"
      "%loss = aten::sum(self=%a)\n"
      "output %loss\n",
      c.dtype, c.width, c.keys, c.mask ? "%m" : "nil", c.dropout, c.causal);
  lower::Options options;
  options.device = device;
  const lower::Program program = lower::lower(test::read_graph(text), options).program;
  std::set<std::string> found;
  for (const lower::Segment& segment : program.segments)
    for (const lower::Instr& instr : segment.instrs) {
      if (instr.op == "nnscaler::attention") found.insert("own");
      if (instr.op == "nnscaler::attention_backward") found.insert("back");
      if (instr.op.starts_with("nnscaler::dropped_attention")) found.insert("drops");
      if (instr.op.find("softmax") != std::string::npos) found.insert("parts");
      if (instr.op.find("flash_attention_for_cpu") != std::string::npos) found.insert("flash");
    }
  return fmt::format("{}", fmt::join(found, " "));
}

}  // namespace

TEST_CASE("attention on a GPU is flash in 16 bits, forward and backward") {
  for (const char* dtype : {"bfloat16", "float16"}) {
    CHECK(made_of({.dtype = dtype}, "cuda") == "back own");
    CHECK(made_of({.dtype = dtype, .width = 256, .causal = false}, "cuda") == "back own");
    CHECK(made_of({.dtype = dtype, .keys = 9, .causal = false}, "cuda") == "back own");
  }
  // What its kernels do not take is made of parts.
  CHECK(made_of({.dtype = "float32"}, "cuda") == "parts");
  CHECK(made_of({.dtype = "float64"}, "cuda") == "parts");
  CHECK(made_of({.width = 20}, "cuda") == "parts");
  CHECK(made_of({.width = 264}, "cuda") == "parts");
  CHECK(made_of({.keys = 9}, "cuda") == "parts");
  CHECK(made_of({.causal = false, .mask = true}, "cuda") == "parts");
  CHECK(made_of({.dropout = 0.5}, "cuda") == "parts");
}

TEST_CASE("attention on a CPU has kernels for all dtypes, masks and dropout") {
  for (const char* dtype : {"bfloat16", "float32", "float64"}) {
    CHECK(made_of({.dtype = dtype, .width = 20}, "cpu") == "back own");
    CHECK(made_of({.dtype = dtype, .causal = false, .mask = true}, "cpu") == "flash");
  }
  CHECK(made_of({.dtype = "float32", .dropout = 0.5}, "cpu") == "drops");
  CHECK(made_of({.dtype = "float64", .dropout = 0.5}, "cpu") == "parts");
}

TEST_CASE("kernels of causal attention execute what lies up to the diagonal") {
  const auto share = [](const char* op, int64_t keys, bool causal) {
    tests::Call call(op);
    call.tensor("query", {2, 4, 6, 8}).tensor("key", {2, 4, keys, 8});
    call.tensor("value", {2, 4, keys, 8}).arg("is_causal", causal);
    return operators::executed_flops(call.view()) / operators::flops(call.view());
  };
  CHECK(share("nnscaler::attention", 6, true) == Approx(21.0 / 36));  // pairs of query and key
  CHECK(share("nnscaler::attention_backward", 6, true) == Approx(21.0 / 36));
  CHECK(share("nnscaler::attention", 6, false) == 1);
  CHECK(share("nnscaler::attention", 9, true) == 1);
  CHECK(share("aten::scaled_dot_product_attention", 6, true) == 1);  // not a kernel's
}
