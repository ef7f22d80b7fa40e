#include "trace/rules.h"

#include <set>

#include "base/error.h"

namespace nns::trace {
namespace {

using Names = std::set<std::string_view>;

std::string_view base_of(std::string_view op) {
  return op.substr(0, op.find('.'));
}

}  // namespace

void refuse_data_reader(const std::string& op) {
  static const Names names = {"aten::item",
                              "aten::_local_scalar_dense",
                              "aten::is_nonzero",
                              "aten::equal",
                              "aten::allclose",
                              "aten::Bool",
                              "aten::Int",
                              "aten::Float",
                              "aten::ScalarImplicit",
                              "aten::tolist"};
  if (names.contains(base_of(op)))
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.data] {} needs the data of a tensor, which a model under trace does "
                    "not have",
                    op),
        "keep the computation in tensors: `where`, `masked_fill`, a 0-dim tensor");
}

void refuse_data_dependent(const annotate::CallView& call) {
  static const Names names = {"aten::nonzero",
                              "aten::nonzero_numpy",
                              "aten::argwhere",
                              "aten::masked_select",
                              "aten::unique_dim",
                              "aten::unique_consecutive",
                              "aten::_unique",
                              "aten::_unique2",
                              "aten::unique_dim_consecutive",
                              "aten::bincount",
                              "aten::where",
                              "aten::repeat_interleave.Tensor",
                              "aten::repeat_interleave.self_Tensor",
                              "aten::tensor_split.tensor_indices_or_sections"};
  const bool by_name = names.contains(call.op()) ||
                       (call.base() != "aten::where" && call.base() != "aten::repeat_interleave" &&
                        call.base() != "aten::tensor_split" && names.contains(call.base()));
  bool dependent = by_name && !call.has("output_size");
  std::string what(call.op());
  if (call.base() == "aten::index")
    for (const TensorType* index : call.tensors("indices"))
      if (index != nullptr && (index->dtype == DType::boolean || index->dtype == DType::u8)) {
        dependent = true;
        what += " with a boolean mask";
        break;
      }
  if (call.base() == "aten::one_hot" && call.integer("num_classes", -1) < 0) {
    dependent = true;
    what += " without num_classes";
  }
  if (dependent)
    throw Error(ErrorKind::model,
                fmt::format("[trace.shape] the shape that {} returns depends on data", what),
                "keep the shape: `where(mask, x, 0)`, `masked_fill`, a weighted sum, a fixed size");
}

void refuse_random(const std::string& op, bool random) {
  static const Names ours = {"aten::dropout", "aten::scaled_dot_product_attention",
                             "aten::randn_like", "aten::rand_like", "aten::bernoulli"};
  if (random && !ours.contains(op) && !op.starts_with("nnscaler::"))
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.random] {} draws random numbers from hidden state", op),
        "in a model use F.randn_like, F.rand_like, F.normal, F.bernoulli or F.dropout, whose "
        "draws follow from seed, module path and step");
}

void forget_strides(std::string& op, std::vector<graph::NamedArg>& args,
                    const annotate::CallView::TypeOf& type_of) {
  graph::Arg shape;
  if (op == "aten::view" || op == "aten::_unsafe_view") {
    shape = args.at(1).value;
  } else if (op == "aten::view_as") {
    shape = type_of(std::get<graph::ValueRef>(args.at(1).value).id).shape;
  } else if (op == "aten::unflatten.int") {
    shape = annotate::infer(annotate::CallView(op, args, type_of)).at(0).shape;
  } else {
    return;
  }
  op = "aten::reshape";
  args = {args.at(0), {"shape", shape}};
}

bool writes_statistics(const std::vector<graph::NamedArg>& args) {
  for (const graph::NamedArg& arg : args)
    if (arg.name == "training" || arg.name == "train" || arg.name == "use_input_stats")
      if (const bool* on = std::get_if<bool>(&arg.value)) return *on;
  return true;
}

bool keeps_contiguous(const std::string& op, const std::vector<graph::NamedArg>& args, bool dense,
                      bool factory) {
  static const Names always = {"aten::contiguous", "aten::linear", "aten::embedding", "aten::mm",
                               "aten::addmm",      "aten::bmm",    "aten::layer_norm"};
  static const Names if_dense = {
      "aten::add",         "aten::sub",          "aten::mul",       "aten::div",
      "aten::neg",         "aten::pow",          "aten::exp",       "aten::log",
      "aten::sqrt",        "aten::rsqrt",        "aten::relu",      "aten::gelu",
      "aten::silu",        "aten::tanh",         "aten::sigmoid",   "aten::where",
      "aten::masked_fill", "aten::matmul",       "aten::softmax",   "aten::log_softmax",
      "aten::cat",         "aten::stack",        "aten::sum",       "aten::mean",
      "aten::cumsum",      "aten::dropout",      "aten::clone",     "aten::to",
      "aten::zeros_like",  "aten::ones_like",    "aten::gather",    "aten::full_like",
      "aten::empty_like",  "aten::index_select", "aten::new_zeros", "aten::clamp",
      "aten::new_ones",    "aten::new_full",     "aten::new_empty", "aten::view",
      "aten::reshape",     "aten::unsqueeze",    "aten::squeeze",   "aten::flatten",
      "aten::unflatten",   "aten::view_as",      "aten::alias"};
  const std::string_view base = base_of(op);
  if (factory || always.contains(base)) return true;
  if (!dense) return false;
  if (if_dense.contains(base)) return true;
  // The leading rows of dense memory are dense.
  if (base != "aten::select" && base != "aten::slice" && base != "aten::narrow") return false;
  for (const graph::NamedArg& arg : args) {
    const auto* number = std::get_if<int64_t>(&arg.value);
    if (arg.name == "dim" && (number == nullptr || *number != 0)) return false;
    if (arg.name == "step" && (number == nullptr || *number != 1)) return false;
  }
  return true;
}

}  // namespace nns::trace
