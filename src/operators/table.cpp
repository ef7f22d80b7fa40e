// The records as a whole: look-up, registration, and the questions asked of a record.
#include <map>
#include <unordered_map>

#include "operators/family.h"
#include "operators/record.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

using Table = std::map<std::string, Record, std::less<>>;

Table make_table() {
  Records records;
  // Derivatives come last: they are added to records.
  for (const auto add : {add_elementwise,
                         add_reductions,
                         add_shapes,
                         add_cuts,
                         add_indexing,
                         add_creation,
                         add_products,
                         add_attention,
                         add_ring_attention,
                         add_norms,
                         add_spatial,
                         add_pooling,
                         add_resampling,
                         add_recurrent,
                         add_losses,
                         add_linear_losses,
                         add_experts,
                         add_random,
                         add_communication,
                         add_queries,
                         add_autocast,
                         add_elementwise_derivatives,
                         add_reduction_derivatives,
                         add_shape_derivatives,
                         add_index_derivatives,
                         add_product_derivatives,
                         add_norm_derivatives,
                         add_spatial_derivatives,
                         add_pooling_derivatives,
                         add_loss_derivatives,
                         add_fused})
    add(records);
  return records.take();
}

const Table& table() {
  static const Table all = make_table();
  return all;
}

Table& registry() {
  thread_local Table of_scripts;
  return of_scripts;
}

// Every instruction is asked for its record many times.
const Record* own(std::string_view op) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const Record*> all;
    for (const auto& [name, record] : table()) all.emplace(name, &record);
    return all;
  }();
  if (const auto it = by_name.find(op); it != by_name.end()) return it->second;
  const auto it = by_name.find(base_of(op));
  return it == by_name.end() ? nullptr : it->second;
}

const Record& record_of(const CallView& call) {
  const Record* record = find(call.op());
  if (record == nullptr || !record->infer)
    throw Error(ErrorKind::model,
                fmt::format("[annotate.table] operator {} has no entry: shapes of its results are "
                            "not known while tracing",
                            call.op()),
                "write it with operators that are known, or register it");
  return *record;
}

Texts annotations_of(const Record& record, const CallView& call) {
  if (const auto* texts = std::get_if<Texts>(&record.annotations)) return *texts;
  using Build = std::function<Texts(const CallView&)>;
  if (const auto* build = std::get_if<Build>(&record.annotations)) return (*build)(call);
  return {};
}

// Types of the results of a registered operator that says them by its annotation alone.
Types infer_by_annotation(const Record& record, const CallView& call) {
  std::vector<Shape> inputs;
  for (const TensorType* t : call.operands()) inputs.push_back(t->shape);
  if (inputs.empty()) call.fail("no tensor operand; expected one, or a function `infer`");
  std::string why = "it has no annotation";
  for (const std::string& text : annotations_of(record, call)) {
    const auto shapes =
        annotate::output_shapes(annotate::Annotation::parse(text), inputs, integers_of(call), &why);
    if (!shapes) continue;
    Types types;
    for (const Shape& shape : *shapes) types.push_back({shape, call.operands()[0]->dtype});
    return types;
  }
  call.fail(fmt::format("no annotation fits its operands: {}", why));
}

// In-place spellings that do not become their out-of-place one by dropping the underscore; empty:
// there is none (they change what a tensor is, not its elements).
const std::map<std::string_view, std::string_view> kIrregular = {
    {"aten::bernoulli_.float", "aten::bernoulli.p"},
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

const Record* find(std::string_view op) {
  if (const Record* record = own(op)) return record;
  const Table& all = registry();
  if (all.empty()) return nullptr;
  const auto it = all.find(base_of(op));
  return it == all.end() ? nullptr : &it->second;
}

std::vector<const Record*> all_records() {
  std::vector<const Record*> out;
  for (const auto& [name, record] : table()) out.push_back(&record);
  return out;
}

void register_record(Record record) {
  if (record.name.find("::") == std::string::npos || record.name.find('.') != std::string::npos)
    fail(ErrorKind::usage, "[register_op] '{}' is not a name; expected 'library::operator'",
         record.name);
  if (own(record.name) != nullptr)
    fail(ErrorKind::usage, "[register_op] {} is an operator of the table", record.name);
  for (const annotate::TransformRule& rule : std::get<Rules>(record.rules))
    for (const auto* side : {&rule.inputs, &rule.outputs})
      for (const annotate::TensorSplit& t : *side)
        if (t.axes.size() > 1)
          fail(ErrorKind::usage,
               "[register_op] {}: a rule cuts {} dims of one tensor; expected one", record.name,
               t.axes.size());
  record.registered = true;
  if (record.backward) record.derivative = gradient(backward_by_calls);
  if (!record.infer)
    record.infer = [](const CallView& call) { return infer_by_annotation(*find(call.op()), call); };
  std::string name = record.name;
  registry().insert_or_assign(std::move(name), std::move(record));
}

std::vector<std::string> registered_names() {
  std::vector<std::string> out;
  for (const auto& [name, record] : registry()) out.push_back(name);
  return out;
}

void clear_registered() {
  registry().clear();
}

Types infer(const CallView& call) {
  return record_of(call).infer(call);
}

Texts annotations(const CallView& call) {
  const Record* record = find(call.op());
  return record == nullptr ? Texts{} : annotations_of(*record, call);
}

double flops(const CallView& call) {
  const Record& record = record_of(call);
  if (record.flops) return record.flops(call);
  double elements = 0;
  for (const TensorType& out : record.infer(call))
    elements += static_cast<double>(numel(out.shape));
  return is_view(record.view) ? 0 : elements;
}

double executed_flops(const CallView& call) {
  const Record& record = record_of(call);
  return flops(call) * (record.executed ? record.executed(call) : 1);
}

int64_t bytes(const CallView& call) {
  int64_t total = 0;
  for (const TensorType* in : call.operands()) total += bytes_of(*in);
  for (const TensorType& out : infer(call)) total += bytes_of(out);
  return total;
}

std::optional<double> number_of(const CallView& call, std::string_view name) {
  const Arg& arg = call.arg(name);
  if (const auto* real = std::get_if<double>(&arg)) return *real;
  if (const auto* integer = std::get_if<int64_t>(&arg)) return static_cast<double>(*integer);
  return std::nullopt;
}

bool is_identity(const CallView& call) {
  const Record& record = record_of(call);
  return record.identity && !call.boolean("copy") && record.infer(call).at(0) == first(call);
}

bool is_random(const CallView& call) {
  const Record* record = find(call.op());
  if (record == nullptr || !record->random) return false;
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

}  // namespace nns::operators
