// The table as a whole: look-up, and the questions asked of a row.
#include "annotate/op_table.h"

#include <map>

#include "annotate/registry.h"
#include "annotate/rows.h"

namespace nns::annotate {
namespace {

using Table = std::map<std::string_view, OpInfo>;

Table make_table() {
  Table table;
  for (const auto family : {elementwise_rows, reduction_rows, shape_rows, cut_rows, index_rows,
                            creation_rows, product_rows, norm_rows, spatial_rows, loss_rows})
    for (OpInfo& row : family()) {
      const auto name = row.name;
      NNS_CHECK(table.emplace(name, std::move(row)).second, "two rows for {}", name);
    }
  return table;
}

const Table& table() {
  static const Table all = make_table();
  return all;
}

std::string_view base_of(std::string_view op) {
  const size_t colons = op.find("::");
  return op.substr(0, op.find('.', colons == std::string_view::npos ? 0 : colons));
}

const OpInfo& row_of(const CallView& call) {
  const OpInfo* row = find(call.op());
  if (row == nullptr)
    throw Error(ErrorKind::model,
                fmt::format("[annotate.table] operator {} has no entry: shapes of its results are "
                            "not known while tracing",
                            call.op()),
                "write it with operators that are known, or register it");
  return *row;
}

// In-place spellings that do not become their out-of-place one by dropping the underscore; empty:
// there is none (they change what a tensor is, not its elements).
const std::map<std::string_view, std::string_view> kIrregular = {
    {"aten::bernoulli_.float", "aten::bernoulli.p"},
    {"aten::detach_", ""},
    {"aten::pow_.Scalar", "aten::pow.Tensor_Scalar"},
    {"aten::pow_.Tensor", "aten::pow.Tensor_Tensor"},
    {"aten::requires_grad_", ""},
    {"aten::resize_", ""},
    {"aten::retain_grad", ""},
    {"aten::set_", ""},
    {"aten::squeeze_", ""},
    {"aten::squeeze_.dim", ""},
    {"aten::t_", ""},
    {"aten::transpose_", ""},
    {"aten::unsqueeze_", ""},
};

}  // namespace

const OpInfo* find(std::string_view op) {
  if (const auto it = table().find(op); it != table().end()) return &it->second;
  if (const auto it = table().find(base_of(op)); it != table().end()) return &it->second;
  const Registered* own = registered(op);
  return own == nullptr ? nullptr : &own->info;
}

std::vector<const OpInfo*> all_ops() {
  std::vector<const OpInfo*> out;
  for (const auto& [name, row] : table()) out.push_back(&row);
  return out;
}

Types infer(const CallView& call) {
  return row_of(call).infer(call);
}

Texts annotations(const CallView& call) {
  const OpInfo* row = find(call.op());
  if (row == nullptr) return {};
  if (const auto* texts = std::get_if<Texts>(&row->annotations)) return *texts;
  if (const auto* build = std::get_if<Texts (*)(const CallView&)>(&row->annotations))
    return (*build)(call);
  return {};
}

double flops(const CallView& call) {
  const OpInfo& row = row_of(call);
  if (row.flops != nullptr) return row.flops(call);
  double elements = 0;
  for (const TensorType& out : row.infer(call)) elements += static_cast<double>(numel(out.shape));
  return row.view ? 0 : elements;
}

int64_t bytes(const CallView& call) {
  int64_t total = 0;
  for (const TensorType* in : call.operands()) total += bytes_of(*in);
  for (const TensorType& out : infer(call)) total += bytes_of(out);
  return total;
}

bool is_identity(const CallView& call) {
  const OpInfo& row = row_of(call);
  return row.identity && !call.boolean("copy") && row.infer(call).at(0) == first(call);
}

bool is_random(const CallView& call) {
  const OpInfo* row = find(call.op());
  if (row == nullptr || !row->random) return false;
  for (const auto name : {"p", "dropout_p"})
    if (call.find(name) != nullptr && call.maybe_tensor(name) == nullptr && call.real(name) == 0)
      return false;
  return call.boolean("train", true);
}

std::optional<std::string> functional_form(std::string_view op) {
  constexpr std::string_view space = "aten::";
  if (op.substr(0, space.size()) != space) return {};
  if (const auto it = kIrregular.find(op); it != kIrregular.end())
    return it->second.empty() ? std::nullopt : std::optional<std::string>(it->second);
  const std::string_view base = base_of(op), overload = op.substr(base.size());
  const std::string_view name = base.substr(space.size());
  if (name.size() > 5 && name.starts_with("__i") && name.ends_with("__"))  // __iand__
    return fmt::format("aten::__{}{}", name.substr(3), overload);
  if (name.size() < 2 || !name.ends_with('_') || name.ends_with("__")) return {};
  return fmt::format("aten::{}{}", name.substr(0, name.size() - 1), overload);
}

}  // namespace nns::annotate
