// Autocast regions of a model under trace: the casts become calls of the graph, by the lists in the
// operators' records.
#include <ATen/autocast_mode.h>

#include <optional>

#include "trace/recorder.h"

namespace nns::trace {

using graph::NamedArg;
using graph::Role;
using graph::ValueRef;

namespace {

// The dtype of the region that the call stands in, and what it does with operands. A model runs on
// one kind of device: where regions of both are open, that of the GPU counts.
std::optional<std::pair<DType, operators::Cast>> region_of(const operators::Record& record) {
  const auto device = at::autocast::is_autocast_enabled(at::kCUDA) ? at::kCUDA : at::kCPU;
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  const operators::Cast what = device == at::kCUDA ? record.autocast.cuda : record.autocast.cpu;
  if (what == operators::Cast::none) return std::nullopt;
  return std::pair(tensor::from_torch(at::autocast::get_autocast_dtype(device)), what);
}

template <class Visit>
void for_each(std::vector<NamedArg>& args, const Visit& visit) {
  for (NamedArg& arg : args) {
    if (auto* one = std::get_if<ValueRef>(&arg.value)) visit(*one);
    if (auto* list = std::get_if<std::vector<ValueRef>>(&arg.value))
      for (ValueRef& ref : *list) visit(ref);
  }
}

bool is_cast(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace

ValueRef Recorder::cast(ValueRef value, DType to) {
  const auto key =
      std::tuple(value.id, to, site_.context.recompute_region, site_.context.grad_enabled);
  const bool weight = graph_.value(value).role == Role::parameter;
  if (const auto it = casts_.find(key); weight && it != casts_.end()) return {it->second};
  const int made = emit_one("aten::to.dtype", {{"self", value},
                                               {"dtype", to},
                                               {"non_blocking", false},
                                               {"copy", false},
                                               {"memory_format", {}}});
  if (weight) casts_[key] = made;
  return {made};
}

void Recorder::autocast(const operators::Record& record, std::vector<NamedArg>& args) {
  const auto region = region_of(record);
  if (!region) return;
  DType to = region->second == operators::Cast::full ? DType::f32 : region->first;
  if (region->second == operators::Cast::widest)
    for_each(args, [&](ValueRef& ref) {
      if (ref.id >= 0 && type_of(ref).dtype == DType::f32) to = DType::f32;
    });
  for_each(args, [&](ValueRef& ref) {
    if (ref.id < 0 || !is_cast(type_of(ref).dtype) || type_of(ref).dtype == to) return;
    ref = cast(ref, to);
  });
}

}  // namespace nns::trace
