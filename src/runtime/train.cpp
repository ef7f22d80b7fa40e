#include "runtime/train.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "ops/kernels.h"
#include "script/state.h"
#include "tensor/box.h"
#include "tensor/modules.h"

namespace nns::runtime {
namespace {

using script::guarded;

constexpr int64_t kBlock = 16384;  // elements whose squares are summed by one task

// Scales n elements and returns the sum of their squares.
template <class T>
double scale_block(T* x, int64_t n, double scale) {
  const T factor = static_cast<T>(scale);
  if (scale != 1.0)
    for (int64_t j = 0; j < n; ++j) x[j] *= factor;
  return ops::sum_of_squares(x, n);
}

struct Block {
  size_t tensor;
  int64_t start, size;
};

bool is_plain(const at::Tensor& t) {
  return t.is_cpu() && t.is_contiguous() &&
         (t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble);
}

std::vector<at::Tensor> check_list(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  const int n = static_cast<int>(lua_objlen(L, index));
  std::vector<at::Tensor> list;
  list.reserve(static_cast<size_t>(n));
  for (int i = 1; i <= n; ++i) {
    lua_rawgeti(L, index, i);
    list.push_back(tensor::check_real(L, -1));
    lua_pop(L, 1);
  }
  return list;
}

int lua_scale_and_norm(lua_State* L) {  // (gradients, scale) → norm
  lua_pushnumber(L, scale_and_norm(check_list(L, 1), script::check_number(L, 2)));
  return 1;
}

int lua_scale(lua_State* L) {  // (gradients, factor)
  const at::NoGradGuard no_grad;
  const auto list = check_list(L, 1);
  if (!list.empty()) at::_foreach_mul_(list, at::Scalar(script::check_number(L, 2)));
  return 0;
}

// (parameters, gradients): replaces, in the list of gradients, those whose elements do not lie in
// memory as their parameter's do (the fused optimizer kernels walk both by address), and those that
// share their memory with one before (they are scaled in place).
int lua_align(lua_State* L) {
  const auto parameters = check_list(L, 1);
  const auto gradients = check_list(L, 2);
  NNS_CHECK(parameters.size() == gradients.size(), "{} parameters, {} gradients", parameters.size(),
            gradients.size());
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& w = parameters[i];
    const at::Tensor& g = gradients[i];
    if (g.sizes() != w.sizes())
      fail(ErrorKind::internal, "[optim.step] gradient {} has {} elements, its parameter {}", i + 1,
           g.numel(), w.numel());
    const bool alike = g.strides() == w.strides() || (g.is_contiguous() && w.is_contiguous());
    if (alike && (g.numel() == 0 || seen.insert(g.const_data_ptr()).second)) continue;
    at::Tensor aligned = at::empty_like(w, g.scalar_type());
    aligned.copy_(g);
    tensor::push(L, std::move(aligned));
    lua_rawseti(L, 2, static_cast<int>(i + 1));
  }
  return 0;
}

void copy_part(const at::Tensor& packed, int64_t first, const at::Tensor& whole, int64_t dim,
               int64_t start, int64_t length, bool back) {
  if (dim == 0 && whole.is_cpu() && whole.is_contiguous() && packed.is_cpu() &&
      whole.scalar_type() == packed.scalar_type()) {  // rows lie as they are packed
    const int64_t row = whole.numel() / std::max<int64_t>(1, whole.size(0));
    const auto size = static_cast<int64_t>(whole.itemsize());
    char* line = static_cast<char*>(packed.mutable_data_ptr()) + first * size;
    char* piece = static_cast<char*>(whole.mutable_data_ptr()) + start * row * size;
    std::memcpy(back ? piece : line, back ? line : piece, static_cast<size_t>(length * row * size));
    return;
  }
  const at::Tensor piece = whole.detach().narrow(dim, start, length);
  const at::Tensor line = packed.narrow(0, first, piece.numel()).view(piece.sizes());
  back ? piece.copy_(line) : line.copy_(piece);
}

int lua_copy_parts(lua_State* L) {  // (packed, first, parts, tensors, back)
  const at::Tensor packed = tensor::check_real(L, 1).detach();
  const int64_t first = luaL_checkinteger(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  luaL_checktype(L, 4, LUA_TTABLE);
  const bool back = lua_toboolean(L, 5) != 0;
  const at::NoGradGuard no_grad;
  const int n = static_cast<int>(lua_objlen(L, 3));
  for (int i = 1; i <= n; ++i) {
    lua_rawgeti(L, 4, i);
    if (lua_toboolean(L, -1) != 0) {
      const at::Tensor& whole = tensor::check_real(L, lua_gettop(L));
      lua_rawgeti(L, 3, i);
      const auto field = [&](const char* key) {
        return script::field_int(L, lua_gettop(L), key, 0);
      };
      copy_part(packed, first + field("offset"), whole, field("dim"), field("start"),
                field("length"), back);
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
  }
  return 0;
}

int lua_fingerprint(lua_State* L) {  // (tensor) → hash of dtype, shape and elements
  const at::Tensor t = tensor::check_real(L, 1).detach().cpu().contiguous();
  const uint64_t type = hash_bytes(to_string(tensor::type_of(t)));
  const auto* data = static_cast<const char*>(t.const_data_ptr());
  script::push_string(L, hex(hash_bytes({data, t.nbytes()}, type)));
  return 1;
}

int open(lua_State* L) {
  lua_createtable(L, 0, 5);
  script::set_functions(L, {{"scale_and_norm", guarded<lua_scale_and_norm>},
                            {"scale", guarded<lua_scale>},
                            {"align", guarded<lua_align>},
                            {"copy_parts", guarded<lua_copy_parts>},
                            {"fingerprint", guarded<lua_fingerprint>}});
  return 1;
}

}  // namespace

double scale_and_norm(const std::vector<at::Tensor>& gradients, double scale) {
  const at::NoGradGuard no_grad;
  std::vector<Block> blocks;
  double total = 0;
  for (size_t t = 0; t < gradients.size(); ++t) {
    const at::Tensor& g = gradients[t];
    if (is_plain(g)) {
      for (int64_t start = 0; start < g.numel(); start += kBlock)
        blocks.push_back({t, start, std::min(kBlock, g.numel() - start)});
    } else {
      if (scale != 1.0) at::_foreach_mul_({g}, at::Scalar(scale));
      const double norm = at::linalg_vector_norm(g, 2, {}, false, at::kDouble).item<double>();
      total += norm * norm;
    }
  }
  std::vector<double> sums(blocks.size());
  at::parallel_for(0, static_cast<int64_t>(blocks.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks[static_cast<size_t>(b)];
      const at::Tensor& g = gradients[block.tensor];
      double& sum = sums[static_cast<size_t>(b)];
      if (g.scalar_type() == at::kFloat)
        sum = scale_block(static_cast<float*>(g.data_ptr()) + block.start, block.size, scale);
      else
        sum = scale_block(static_cast<double*>(g.data_ptr()) + block.start, block.size, scale);
    }
  });
  for (double s : sums) total += s;
  return std::sqrt(total);
}

void open_train(lua_State* L) {
  script::preload(L, "nnscaler._C.train", guarded<open>);
}

}  // namespace nns::runtime
