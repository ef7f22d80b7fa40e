#include "trace/rules.h"

#include "base/error.h"

namespace nns::trace {
namespace {

using operators::Answer;
using operators::Dense;
using operators::Record;
using operators::View;

}  // namespace

void refuse_data_reader(const std::string& op) {
  const Record* record = operators::find(op);
  if (record != nullptr && record->answer == Answer::data)
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.data] {} needs the data of a tensor, which a model under trace does "
                    "not have",
                    op),
        "keep the computation in tensors: `where`, `masked_fill`, a 0-dim tensor");
}

void refuse_data_dependent(const operators::CallView& call) {
  const Record* record = operators::find(call.op());
  if (record == nullptr || !record->depends_on_data) return;
  const auto why = record->depends_on_data(call);
  if (!why) return;
  const std::string what =
      why->empty() ? std::string(call.op()) : fmt::format("{} {}", call.op(), *why);
  throw Error(ErrorKind::model,
              fmt::format("[trace.shape] the shape that {} returns depends on data", what),
              "keep the shape: `where(mask, x, 0)`, `masked_fill`, a weighted sum, a fixed size");
}

void refuse_random(const std::string& op, bool random) {
  const Record* record = operators::find(op);
  if (random && (record == nullptr || !record->counted))
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.random] {} draws random numbers from hidden state", op),
        "in a model use F.randn_like, F.rand_like, F.normal, F.bernoulli or F.dropout, whose "
        "draws follow from seed, module path and step");
}

void forget_strides(std::string& op, std::vector<graph::NamedArg>& args,
                    const operators::CallView::TypeOf& type_of) {
  const Record* record = operators::find(op);
  if (record == nullptr || record->view != View::strided) return;
  const operators::CallView call(op, args, type_of);
  const graph::Arg shape = call.has(record->size_arg)
                               ? call.arg(record->size_arg)
                               : graph::Arg(operators::infer(call).at(0).shape);
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
  const Record* record = operators::find(op);
  const Dense known = record == nullptr ? Dense::unknown : record->dense;
  if (factory || known == Dense::always) return true;
  if (!dense || known == Dense::unknown) return false;
  if (known == Dense::kept) return true;
  // The leading rows of dense memory are dense.
  for (const graph::NamedArg& arg : args) {
    const auto* number = std::get_if<int64_t>(&arg.value);
    if (arg.name == "dim" && (number == nullptr || *number != 0)) return false;
    if (arg.name == "step" && (number == nullptr || *number != 1)) return false;
  }
  return true;
}

}  // namespace nns::trace
