// What the Lua userdata "nnscaler.Tensor" holds. Three kinds share one metatable, so that a model
// does not know whether it runs or is traced:
//   real      an at::Tensor
//   traced    a value of the Graph being recorded (shape and dtype only)
//   parameter a lazy parameter or buffer: shape, dtype, initialiser; real after `materialize`
// Everything else about tensors in Lua lives in src/tensor; this header is what other folders see.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/types.h"

struct lua_State;

namespace nns::script {
class Ref;
}

namespace nns::tensor {

// A tensor of a model that is being traced. The recorder finds what it stands for by its handle:
// a place that in-place operators may write, not one value of the graph.
struct Traced {
  uint64_t trace = 0;  // serial number of the trace it belongs to
  int handle = -1;     // of the recorder
  TensorType type;
  bool requires_grad = false;
};

// How the elements of a parameter come to be: a pure function of (seed, path, element index).
// kind: "constant" (a), "normal" (mean a, std b), "uniform" (low a, high b), "trunc_normal"
// (mean a, std b, cut at ±c), "orthogonal" (gain a; whole), "eye" (whole), "buffer" (Lua function),
// "read" (of a part: another), "none" (values come from elsewhere; never drawn).
struct Initializer {
  std::string kind = "constant";
  double a = 0, b = 0, c = 0;
  std::shared_ptr<script::Ref> compute;  // "buffer": () → tensor, "read": (start, shape) → it
};

struct Parameter {
  TensorType type;
  Initializer init;
  std::string path;  // "transformer.wte.weight"; set by the module tree
  bool is_buffer = false, persistent = true, requires_grad = true;
  // A parallel module's part of a parameter, which `init` draws: the whole shape, and where the
  // part begins.
  bool part = false;
  Shape whole, start;
  bool grad_pending = false;  // gradients are addends of this rank until they are summed
  at::Tensor data;            // defined once materialised
};

struct Box {
  static constexpr uint64_t kMagic = 0x7e4507f1a9c3d28bull;
  uint64_t magic = kMagic;  // with the size, tells our userdata from others
  at::Tensor real;
  std::shared_ptr<Traced> traced;
  std::shared_ptr<Parameter> parameter;
  int64_t bytes = 0;      // of the storage, if this box was the first to hold it
  bool released = false;  // by `release`: any use is an error
};

inline constexpr const char* kTensorType = "nnscaler.Tensor";

// Pushes a tensor; an undefined one is pushed as nil.
void push(lua_State* L, at::Tensor tensor);
void push(lua_State* L, std::shared_ptr<Traced> traced);
void push(lua_State* L, std::shared_ptr<Parameter> parameter);
// Returns the box at `index`, or raises an argument error.
Box& check_box(lua_State* L, int index);
// Returns the box at `index`, or nullptr if it is something else.
Box* test_box(lua_State* L, int index) noexcept;
// Returns the real tensor (of a materialised parameter too), or throws a model Error: traced values
// have no data ("[tensor.data] …"), a parameter must be materialised first.
const at::Tensor& check_real(lua_State* L, int index);

// The real tensor of a box (see check_real).
const at::Tensor& real_of(const Box& box);

// Drops what the box holds at once; using it afterwards is an error.
void release(Box& box) noexcept;

// Boxes alive in this process, and the bytes of the storages they hold (leak tests, reports).
int64_t live_boxes();
int64_t live_bytes();

// dtype and type conversion between ours and LibTorch's.
c10::ScalarType to_torch(DType dtype);
DType from_torch(c10::ScalarType type);
TensorType type_of(const at::Tensor& tensor);

}  // namespace nns::tensor
