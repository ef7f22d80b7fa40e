// Calls without boxing: for the operators that training a transformer runs all the time, Lua
// arguments are read straight into the parameters of at::_ops::NAME::call. Positional arguments and
// a keyword table are known; whatever a reader refuses goes through the boxed door.
#include "tensor/reader.h"  // first: operator headers need its types

#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/contiguous_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/to_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>

#include <unordered_map>

#include "script/state.h"
#include "tensor/call.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

template <class T>
bool read_argument(FastFrame& f, const Want& want, typename Reader<T>::Storage& out) {
  if (!want.keyword_only && f.next <= f.positional) {
    const int index = f.next++;
    if (!lua_isnil(f.L, index)) return Reader<T>::read(f, index, out);
  }
  if (f.keywords != 0) {
    lua_pushlstring(f.L, want.name.data(), want.name.size());
    lua_rawget(f.L, f.keywords);
    const int top = lua_gettop(f.L);
    const bool given = !lua_isnil(f.L, top);
    const bool ok = given && Reader<T>::read(f, top, out);
    lua_settop(f.L, top - 1);
    if (given) {
      ++f.used;
      return ok;
    }
  }
  return Reader<T>::absent(want, out);
}

int push_result(lua_State* L, const Door& door, at::Tensor&& result) {
  push(L, door, std::move(result));
  return 1;
}
int push_result(lua_State* L, const Door&, at::Tensor&) {  // in-place: the caller's own tensor
  lua_pushvalue(L, 1);
  return 1;
}
int push_result(lua_State* L, const Door& door, std::vector<at::Tensor>&& results) {
  lua_createtable(L, static_cast<int>(results.size()), 0);
  for (size_t i = 0; i < results.size(); ++i) {
    push(L, door, std::move(results[i]));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
template <class... T>
int push_result(lua_State* L, const Door& door, std::tuple<T...>&& results) {
  std::apply([&](auto&... result) { (push(L, door, std::move(result)), ...); }, results);
  return sizeof...(T);
}

// Returns the number of results, or -1 if the arguments are not for this overload.
template <class Op, class R, class... A, size_t... I>
int attempt(FastFrame f, R (*)(A...), std::index_sequence<I...>) {
  static const Overload& overload =
      find_operator(std::string(Op::name) + "." +
                    (*Op::overload_name == 0 ? "default" : Op::overload_name))
          ->overloads[0];
  std::tuple<typename Reader<A>::Storage...> values{};
  if (!(read_argument<A>(f, overload.args[I], std::get<I>(values)) && ...)) return -1;
  while (f.next <= f.positional && lua_isnil(f.L, f.next)) ++f.next;
  if (f.next <= f.positional || f.used != f.keyword_count) return -1;
  return push_result(f.L, f.door, Op::call(Reader<A>::pass(std::get<I>(values))...));
}
template <class Op, class R, class... A>
int attempt(const FastFrame& f, R (*call)(A...)) {
  return attempt<Op>(f, call, std::index_sequence_for<A...>());
}

// Takes a keyword table off the end of the arguments; false if it is something stranger.
bool take_keywords(FastFrame& f) {
  const int last = f.positional;
  if (last < 2 || lua_type(f.L, last) != LUA_TTABLE || lua_objlen(f.L, last) > 0) return true;
  lua_pushnil(f.L);
  while (lua_next(f.L, last) != 0) {
    lua_pop(f.L, 1);
    ++f.keyword_count;
  }
  if (f.keyword_count == 0) return false;
  f.keywords = last;
  --f.positional;
  return true;
}

template <class... Ops>
int fast_call(lua_State* L) {  // upvalues: Door*, Operator*
  Door& door = *static_cast<Door*>(lua_touserdata(L, lua_upvalueindex(1)));
  const auto& op = *static_cast<const Operator*>(lua_touserdata(L, lua_upvalueindex(2)));
  FastFrame frame{L, door, lua_gettop(L)};
  if (door.interceptor == nullptr && frame.positional > 0 && take_keywords(frame)) {
    try {
      int results = -1;
      if ((((results = attempt<Ops>(frame, &Ops::call)) >= 0) || ...)) return results;
    } catch (const c10::Error& e) {
      lua_settop(L, frame.positional + (frame.keywords != 0 ? 1 : 0));
      return recover(L, door, op, e);
    }
  }
  return call_with(L, door, op);
}

using Hot = std::unordered_map<std::string, lua_CFunction>;

// Enters an operator under its name, and each overload under its full one.
template <class... Ops>
void enter(Hot& hot, const char* name) {
  hot.emplace(fmt::format("aten::{}", name), guard<fast_call<Ops...>>);
  (hot.emplace(
       fmt::format("{}.{}", Ops::name, *Ops::overload_name == 0 ? "default" : Ops::overload_name),
       guard<fast_call<Ops>>),
   ...);
}

Hot make_hot() {
  namespace op = at::_ops;
  Hot hot;
  enter<op::add_Tensor, op::add_Scalar>(hot, "add");
  enter<op::add__Tensor, op::add__Scalar>(hot, "add_");
  enter<op::sub_Tensor, op::sub_Scalar>(hot, "sub");
  enter<op::sub__Tensor, op::sub__Scalar>(hot, "sub_");
  enter<op::rsub_Tensor, op::rsub_Scalar>(hot, "rsub");
  enter<op::mul_Tensor, op::mul_Scalar>(hot, "mul");
  enter<op::mul__Tensor, op::mul__Scalar>(hot, "mul_");
  enter<op::div_Tensor, op::div_Scalar>(hot, "div");
  enter<op::div__Tensor, op::div__Scalar>(hot, "div_");
  enter<op::neg>(hot, "neg");
  enter<op::reciprocal>(hot, "reciprocal");
  enter<op::pow_Tensor_Tensor, op::pow_Tensor_Scalar>(hot, "pow");
  enter<op::sqrt>(hot, "sqrt");
  enter<op::rsqrt>(hot, "rsqrt");
  enter<op::exp>(hot, "exp");
  enter<op::log>(hot, "log");
  enter<op::abs>(hot, "abs");
  enter<op::maximum>(hot, "maximum");
  enter<op::mm>(hot, "mm");
  enter<op::bmm>(hot, "bmm");
  enter<op::addmm>(hot, "addmm");
  enter<op::matmul>(hot, "matmul");
  enter<op::linear>(hot, "linear");
  enter<op::t>(hot, "t");
  enter<op::transpose_int>(hot, "transpose");
  enter<op::permute>(hot, "permute");
  enter<op::view>(hot, "view");
  enter<op::reshape>(hot, "reshape");
  enter<op::expand>(hot, "expand");
  enter<op::unsqueeze>(hot, "unsqueeze");
  enter<op::squeeze, op::squeeze_dim>(hot, "squeeze");
  enter<op::select_int>(hot, "select");
  enter<op::slice_Tensor>(hot, "slice");
  enter<op::split_Tensor, op::split_sizes>(hot, "split");
  enter<op::split_with_sizes>(hot, "split_with_sizes");
  enter<op::cat>(hot, "cat");
  enter<op::stack>(hot, "stack");
  enter<op::contiguous>(hot, "contiguous");
  enter<op::clone>(hot, "clone");
  enter<op::detach>(hot, "detach");
  enter<op::to_dtype, op::to_other>(hot, "to");
  enter<op::copy_>(hot, "copy_");
  enter<op::zero_>(hot, "zero_");
  enter<op::fill__Scalar, op::fill__Tensor>(hot, "fill_");
  enter<op::zeros_like>(hot, "zeros_like");
  enter<op::ones_like>(hot, "ones_like");
  enter<op::empty_like>(hot, "empty_like");
  enter<op::sum, op::sum_dim_IntList>(hot, "sum");
  enter<op::mean, op::mean_dim>(hot, "mean");
  enter<op::tanh>(hot, "tanh");
  enter<op::tanh_backward>(hot, "tanh_backward");
  enter<op::sigmoid>(hot, "sigmoid");
  enter<op::sigmoid_backward>(hot, "sigmoid_backward");
  enter<op::relu>(hot, "relu");
  enter<op::threshold_backward>(hot, "threshold_backward");
  enter<op::gelu>(hot, "gelu");
  enter<op::gelu_backward>(hot, "gelu_backward");
  enter<op::silu>(hot, "silu");
  enter<op::silu_backward>(hot, "silu_backward");
  enter<op::layer_norm>(hot, "layer_norm");
  enter<op::native_layer_norm>(hot, "native_layer_norm");
  enter<op::native_layer_norm_backward>(hot, "native_layer_norm_backward");
  enter<op::softmax_int>(hot, "softmax");
  enter<op::_softmax>(hot, "_softmax");
  enter<op::_softmax_backward_data>(hot, "_softmax_backward_data");
  enter<op::log_softmax_int>(hot, "log_softmax");
  enter<op::_log_softmax>(hot, "_log_softmax");
  enter<op::_log_softmax_backward_data>(hot, "_log_softmax_backward_data");
  enter<op::embedding>(hot, "embedding");
  enter<op::embedding_dense_backward>(hot, "embedding_dense_backward");
  enter<op::cross_entropy_loss>(hot, "cross_entropy_loss");
  enter<op::nll_loss_forward>(hot, "nll_loss_forward");
  enter<op::nll_loss_backward>(hot, "nll_loss_backward");
  enter<op::_scaled_dot_product_flash_attention_for_cpu>(
      hot, "_scaled_dot_product_flash_attention_for_cpu");
  enter<op::_scaled_dot_product_flash_attention_for_cpu_backward>(
      hot, "_scaled_dot_product_flash_attention_for_cpu_backward");
  enter<op::slice_backward>(hot, "slice_backward");
  enter<op::select_backward>(hot, "select_backward");
  enter<op::masked_fill_Scalar, op::masked_fill_Tensor>(hot, "masked_fill");
  enter<op::where_self, op::where_ScalarOther>(hot, "where");
  enter<op::eq_Tensor, op::eq_Scalar>(hot, "eq");
  enter<op::ne_Tensor, op::ne_Scalar>(hot, "ne");
  enter<op::lt_Tensor, op::lt_Scalar>(hot, "lt");
  enter<op::le_Tensor, op::le_Scalar>(hot, "le");
  enter<op::gt_Tensor, op::gt_Scalar>(hot, "gt");
  enter<op::ge_Tensor, op::ge_Scalar>(hot, "ge");
  enter<op::gather>(hot, "gather");
  enter<op::index_select>(hot, "index_select");
  enter<op::tril>(hot, "tril");
  enter<op::lerp__Tensor, op::lerp__Scalar>(hot, "lerp_");
  enter<op::addcmul_>(hot, "addcmul_");
  enter<op::addcdiv_>(hot, "addcdiv_");
  return hot;
}

}  // namespace

lua_CFunction fast_function(std::string_view name) {
  static const Hot hot = make_hot();
  const auto it = hot.find(std::string(name));
  return it == hot.end() ? nullptr : it->second;
}

}  // namespace nns::tensor
