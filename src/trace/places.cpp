// Views and what a write through them means: reading replays the chain of view calls, writing runs
// their inverses from the written view up to the root of its storage.
#include "trace/places.h"

#include <algorithm>

#include "base/error.h"
#include "operators/record.h"

namespace nns::trace {
namespace {

using graph::ValueRef;

using operators::View;

View view_of(const std::string& op) {
  const operators::Record* record = operators::find(op);
  return record == nullptr ? View::none : record->view;
}

const Arg& argument(const std::vector<NamedArg>& args, std::string_view name) {
  for (const NamedArg& arg : args)
    if (arg.name == name) return arg.value;
  fail(ErrorKind::internal, "[trace.view] a view call has no argument '{}'", name);
}
int64_t integer(const std::vector<NamedArg>& args, std::string_view name) {
  return std::get<int64_t>(argument(args, name));
}
size_t dimension(const std::vector<NamedArg>& args, size_t rank) {
  const int64_t d = integer(args, "dim");
  return static_cast<size_t>(d < 0 ? d + static_cast<int64_t>(rank) : d);
}

ViewStep select(int64_t dim, int64_t index) {
  return {"aten::select.int", {{"self", ValueRef{}}, {"dim", dim}, {"index", index}}};
}
ViewStep slice(int64_t dim, int64_t start, int64_t end) {
  return {
      "aten::slice.Tensor",
      {{"self", ValueRef{}}, {"dim", dim}, {"start", start}, {"end", end}, {"step", int64_t{1}}}};
}
std::vector<NamedArg> with_self(const ViewStep& step, int value) {
  std::vector<NamedArg> args = step.args;
  args.front().value = ValueRef{value};
  return args;
}

}  // namespace

Aliasing aliasing_of(const std::string& op, const std::vector<NamedArg>& args, size_t index,
                     const TensorType& in, const std::vector<TensorType>& outs, bool contiguous,
                     bool identity, bool marked) {
  using Kind = Aliasing::Kind;
  const View view = view_of(op);
  if (view == View::none || view == View::perhaps || view == View::copy) {
    if (identity) return {Kind::view, {"aten::alias", {{"self", ValueRef{}}}}};
    // The schema's mark says "may alias" for conversions too, which copy when the type changes.
    const bool converts = outs[index].dtype != in.dtype;
    return {marked && !converts ? Kind::maybe : Kind::none, {}};
  }
  const ViewStep as_called{op, args};
  switch (view) {
    case View::reshape:
    case View::flatten:
      if (contiguous || outs[index].shape == in.shape) return {Kind::view, as_called};
      return {Kind::maybe, {}};
    case View::dense:
      if (contiguous) return {Kind::view, as_called};
      return {Kind::maybe, {}};
    case View::opaque:
      return {Kind::maybe, {}};
    case View::unbind: {
      const auto dim = static_cast<int64_t>(dimension(args, in.shape.size()));
      return {Kind::view, select(dim, static_cast<int64_t>(index))};
    }
    case View::split: {
      const size_t dim = dimension(args, in.shape.size());
      int64_t start = 0;
      for (size_t i = 0; i < index; ++i) start += outs[i].shape[dim];
      const int64_t end = start + outs[index].shape[dim];
      return {Kind::view, slice(static_cast<int64_t>(dim), start, end)};
    }
    case View::strided:
    case View::shape:
      return {Kind::view, {"aten::reshape", {{"self", ValueRef{}}, {"shape", outs[index].shape}}}};
    default:
      return {Kind::view, as_called};
  }
}

int Places::add(StorageKind kind, std::string name, int value, bool contiguous) {
  Storage storage;
  storage.kind = kind;
  storage.name = std::move(name);
  storages_.push_back(std::move(storage));
  Handle handle;
  handle.storage = static_cast<int>(storages_.size()) - 1;
  handle.value = value;
  handle.contiguous = contiguous;
  handles_.push_back(std::move(handle));
  return static_cast<int>(handles_.size()) - 1;
}

int Places::add_view(int parent, ViewStep step, int value, bool contiguous) {
  Handle handle;
  handle.storage = handles_[at(parent)].storage;
  handle.parent = parent;
  handle.step = std::move(step);
  handle.value = value;
  handle.version = storage(parent).version;
  handle.contiguous = contiguous;
  handles_.push_back(std::move(handle));
  return static_cast<int>(handles_.size()) - 1;
}

void Places::may_share(int a, int b) {
  const int first = handles_[at(a)].storage, second = handles_[at(b)].storage;
  // Whatever may share memory with one of them may share it with the other.
  std::vector<int> family = storages_[at(first)].relatives;
  family.push_back(first);
  for (int s : storages_[at(second)].relatives) family.push_back(s);
  family.push_back(second);
  for (int s : family)
    for (int other : family) {
      auto& relatives = storages_[at(s)].relatives;
      if (other != s && std::find(relatives.begin(), relatives.end(), other) == relatives.end())
        relatives.push_back(other);
    }
}

int Places::read(int handle) {
  const Storage& store = storage(handle);
  if (!store.lost.empty())
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.alias] a tensor is read after the write at {}, which reached it "
                    "or not depending on strides that a graph does not have",
                    store.lost),
        "write `view` where the result must share memory, `clone` where it must not");
  Handle& place = handles_[at(handle)];
  if (place.version == store.version) return place.value;
  NNS_CHECK(place.parent >= 0, "root of a storage is out of date");
  const int base = read(place.parent);
  const int value = emit_(place.step.op, with_self(place.step, base));
  Handle& again = handles_[at(handle)];
  again.value = value;
  again.version = store.version;
  return value;
}

void Places::check_writable(int handle, const std::string& op) const {
  const Storage& store = storage(handle);
  const auto refuse = [&](std::string_view what, const char* hint) {
    throw Error(ErrorKind::model, fmt::format("[trace.write] {} writes to {}", op, what), hint);
  };
  switch (store.kind) {
    case StorageKind::input:
      refuse(fmt::format("input '{}' of the model", store.name),
             "write to a copy: `x = x:clone()`, or use the operator without `_`");
      break;
    case StorageKind::parameter:
      refuse(fmt::format("parameter '{}'", store.name),
             "parameters change by the optimizer only; keep such state in a buffer");
      break;
    case StorageKind::constant:
      refuse("a tensor made outside the model",
             "keep state that changes in a buffer of the module (`register_buffer`)");
      break;
    default:
      break;
  }
  for (int h = handle; handles_[at(h)].parent >= 0; h = handles_[at(h)].parent) {
    if (view_of(handles_[at(h)].step.op) == View::spread)
      refuse("an expanded tensor, whose elements share memory", "clone it before writing");
  }
}

void Places::write(int handle, int value, const std::string& site) {
  // What the parents hold is read before the storage changes.
  std::vector<std::pair<int, int>> chain = {{handle, value}};
  for (int h = handle; handles_[at(h)].parent >= 0; h = handles_[at(h)].parent) {
    const int parent = handles_[at(h)].parent;
    const int base = read(parent);
    chain.emplace_back(parent, scatter(handles_[at(h)].step, base, chain.back().second));
  }
  Storage& store = storages_[at(handles_[at(handle)].storage)];
  ++store.version;
  for (const auto& [h, now] : chain) {
    handles_[at(h)].value = now;
    handles_[at(h)].version = store.version;
  }
  for (int s : store.relatives) storages_[at(s)].lost = site;
}

int Places::scatter(const ViewStep& step, int base, int value) {
  const auto& args = step.args;
  const TensorType parent = type_of_(base);
  const ValueRef self{base}, source{value};
  const auto slice_scatter = [&](int64_t dim, const Arg& start, const Arg& end, int64_t by) {
    return emit_("aten::slice_scatter", {{"self", self},
                                         {"src", source},
                                         {"dim", dim},
                                         {"start", start},
                                         {"end", end},
                                         {"step", by}});
  };
  switch (view_of(step.op)) {
    case View::narrow: {
      const int64_t dim = integer(args, "dim");
      int64_t start = integer(args, "start");
      if (start < 0) start += parent.shape[dimension(args, parent.shape.size())];
      return slice_scatter(dim, start, start + integer(args, "length"), 1);
    }
    case View::slice:
      return slice_scatter(integer(args, "dim"), argument(args, "start"), argument(args, "end"),
                           integer(args, "step"));
    case View::select:
      return emit_("aten::select_scatter", {{"self", self},
                                            {"src", source},
                                            {"dim", integer(args, "dim")},
                                            {"index", integer(args, "index")}});
    case View::diagonal:
      return emit_("aten::diagonal_scatter", {{"self", self},
                                              {"src", source},
                                              {"offset", integer(args, "offset")},
                                              {"dim1", integer(args, "dim1")},
                                              {"dim2", integer(args, "dim2")}});
    case View::swap:
      return emit_("aten::transpose.int",
                   {{"self", source}, {"dim0", args[1].value}, {"dim1", args[2].value}});
    case View::transpose:
      return emit_("aten::t", {{"self", source}});
    case View::permute: {
      const auto& dims = std::get<std::vector<int64_t>>(argument(args, "dims"));
      const auto rank = static_cast<int64_t>(dims.size());
      std::vector<int64_t> inverse(dims.size());
      for (int64_t i = 0; i < rank; ++i) {
        const int64_t d = dims[static_cast<size_t>(i)];
        inverse[static_cast<size_t>(d < 0 ? d + rank : d)] = i;
      }
      return emit_("aten::permute", {{"self", source}, {"dims", inverse}});
    }
    case View::move:
      return emit_(step.op, {{"self", source},
                             {"source", argument(args, "destination")},
                             {"destination", argument(args, "source")}});
    case View::strided:
    case View::shape:
    case View::reshape:
    case View::flatten:
      return emit_("aten::reshape", {{"self", source}, {"shape", parent.shape}});
    case View::same:
    case View::dense:
      return value;
    case View::complex:
      return emit_("aten::view_as_real", {{"self", source}});
    case View::real:
      return emit_("aten::view_as_complex", {{"self", source}});
    default:
      fail(ErrorKind::internal, "[trace.view] no inverse of {}", step.op);
  }
}

}  // namespace nns::trace
