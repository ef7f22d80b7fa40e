// Which calls programs are written with where kernels of ours serve: by device and dtype.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <set>

#include "lower/lower.h"
#include "support/graph_text.h"

using namespace nns;

namespace {

// The norm of a sum and the gate in the program of one device, the library of ours left out.
std::string made_of(const std::string& dtype, const std::string& device,
                    const std::string& of_weight = "") {
  const std::string text = fmt::format(
      "graph \"Kernels\" training\n"
      "parameter %x \"x\": {0}[4, 8] grad\n"
      "parameter %w \"w\": {1}[8] grad\n"
      "parameter %q \"q\": {0}[4, 8] grad\n"
      "%a = aten::add.Tensor(self=%x, other=%q)\n"
      "%n = aten::layer_norm(input=%a, normalized_shape=[8], weight=%w, bias=nil, eps=1e-5)\n"
      "%s = aten::silu(self=%n)\n"
      "%y = aten::mul.Tensor(self=%s, other=%x)\n"
      "%loss = aten::sum(self=%y)\n"
      "output %loss\n",
      dtype, of_weight.empty() ? dtype : of_weight);
  lower::Options options;
  options.device = device;
  const lower::Program program = lower::lower(test::read_graph(text), options).program;
  std::set<std::string> found;
  for (const lower::Segment& segment : program.segments)
    for (const lower::Instr& instr : segment.instrs)
      for (const char* part : {"layer_norm", "silu", "swiglu"})
        if (instr.op.find(part) != std::string::npos)
          found.insert(instr.op.starts_with("nnscaler::") ? instr.op.substr(10) : instr.op);
  return fmt::format("{}", fmt::join(found, " "));
}

const std::string ours = "add_layer_norm layer_norm_backward swiglu swiglu_backward";
const std::string atens =
    "aten::native_layer_norm aten::native_layer_norm_backward aten::silu aten::silu_backward";

}  // namespace

TEST_CASE("kernels of ours serve float32 on a CPU, and on a GPU 16 bits too") {
  CHECK(made_of("float32", "cpu") == ours);
  for (const char* dtype : {"float64", "bfloat16", "float16"})
    CHECK(made_of(dtype, "cpu") == atens);
  for (const char* dtype : {"float32", "bfloat16", "float16"})
    CHECK(made_of(dtype, "cuda") == ours);
  CHECK(made_of("float64", "cuda") == atens);
}

TEST_CASE("a norm whose weight has another type is ATen's") {
  for (const char* device : {"cpu", "cuda"})
    CHECK(made_of("bfloat16", device, "float32").find("aten::native_layer_norm") == 0);
}
