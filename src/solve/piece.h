// Pieces: what lowering writes for one call of a graph under one cut, and for one change of layout,
// made by the code that lowers programs and priced by the simulator of programs. A plan costs the
// sum of its pieces.
#pragma once

#include <vector>

#include "lower/duration.h"

namespace nns::solve {

// How a tensor lies along the one dimension of the mesh: whole on all devices, whole with a
// gradient of addends (of uses only), a sum of addends, or cut along a dimension.
using Code = uint8_t;
constexpr Code kWhole = 0, kPartial = 1, kAddend = 2, kCut = 3;
constexpr int kCodes = 11;  // tensors of up to eight dimensions

// Devices 0 … n-1.
lower::Layout layout_of(Code code, int devices);
lower::OperandUse use_of(Code code, int devices);
Code code_of(const lower::Layout& layout, bool partial);
// Devices hold pieces as an axis says; whether gradients are addends is no matter of pieces.
inline Code pieces(Code code) {
  return code == kPartial ? kWhole : code;
}

// A way to run a call: cut along a dimension of an operand, or whole on every device (input -1).
struct Candidate {
  int input = -1, dim = 0;
  std::vector<Code> inputs, outputs;  // by operand and by result
  lower::NodePlacement placed = {};
  std::vector<std::pair<int, int>> places = {};  // operands and dimensions that all say this
};

// What a call is asked for.
struct Asked {
  std::vector<bool> needs;    // operands whose gradients are wanted
  std::vector<bool> used;     // results that anybody reads
  std::vector<bool> grads;    // results that get a gradient
  std::vector<bool> strided;  // operands whose elements do not lie in row-major order
  auto operator<=>(const Asked&) const = default;
};

struct CallPiece {
  lower::Seconds forward, backward;
  struct Root {
    int64_t bytes = 0;
    bool kept = false;  // backward reads it
  };
  std::vector<Root> roots;  // memory that the call makes and that a result lies in
  struct Result {
    size_t root = 0;  // an operand, or behind those one of `roots`
    bool contiguous = true, requires_grad = false;
  };
  std::vector<Result> results;
  std::vector<bool> reads;     // operands that backward reads
  std::vector<int> gradients;  // contributions to the gradient of each operand
  int64_t kept = 0;            // bytes for backward that lie in no result
  // Bytes that one of its instructions has at least beside operands and what is kept.
  int64_t forward_top = 0, backward_top = 0;
  // Seconds that are spared where operand 0 is a sum that this call alone has read so far: lowering
  // makes it here; and where its gradient joins one that is there: the sum becomes part of the
  // call.
  double spared_sum = 0, spared_gradient = 0;
};

struct ConversionPiece {
  bool none = false;  // the slot as it is
  lower::Seconds forward, backward;
  bool view = false;  // of the memory of what is converted
  bool same = false;  // the gradient of the result is that of what is converted, as it is
  int64_t bytes = 0;  // of the result
};

// What pieces are made for.
struct Target {
  int devices = 1;
  std::string device;  // "cpu", "cuda": chooses kernels
  const cost::Hardware* on = nullptr;
};

// Of device 0, which has the largest parts; where devices pass parts on in a ring, of the one that
// takes longest.
CallPiece make_piece(const graph::Graph& graph, const graph::Node& node, const Candidate& candidate,
                     const Asked& asked, const Target& target);
ConversionPiece make_conversion(const TensorType& whole, Code from, Code to, bool requires_grad,
                                const Target& target);
// Of adding two gradients of this local type.
double sum_seconds(const TensorType& local, const cost::Hardware& on);

}  // namespace nns::solve
