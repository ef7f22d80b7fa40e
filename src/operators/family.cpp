#include "operators/family.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace nns::operators {

void Records::add(std::initializer_list<std::string_view> names, const Record& record) {
  for (const std::string_view name : names) {
    const auto [entry, added] = records_.emplace(name, record);
    NNS_CHECK(added, "two records of {}", name);
    entry->second.name = name;
  }
}

void Records::set(std::initializer_list<std::string_view> names, void (*change)(Record& record)) {
  for (const std::string_view name : names) {
    const auto entry = records_.find(name);
    NNS_CHECK(entry != records_.end(), "{} has no record", name);
    change(entry->second);
  }
}

void Records::derive(std::string_view name, Derivative derivative) {
  const auto entry = records_.find(name);
  NNS_CHECK(entry != records_.end(), "{} has a derivative but no record", name);
  NNS_CHECK(entry->second.derivative.kind == DerivativeKind::none, "two derivatives of {}", name);
  entry->second.derivative = std::move(derivative);
}

void Records::examples(std::string_view names, std::string_view calls) {
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(name.size() + 1, names.size()));
    const auto entry = records_.find(
        name.find("::") == std::string_view::npos ? fmt::format("aten::{}", name) : name);
    NNS_CHECK(entry != records_.end(), "{} has examples but no record", name);
    entry->second.examples.emplace_back(calls);
  }
}

size_t axis(const CallView& call, int64_t dim, size_t rank) {
  const auto n = static_cast<int64_t>(std::max<size_t>(rank, 1));
  if (dim < -n || dim >= n)
    call.fail(
        fmt::format("dimension {} of a tensor with {}; expected {} to {}", dim, rank, -n, n - 1));
  return static_cast<size_t>(dim < 0 ? dim + n : dim);
}

std::vector<bool> axes(const CallView& call, std::string_view name, size_t rank) {
  const auto dims = call.ints(name);
  std::vector<bool> flags(rank, dims.empty());
  for (const int64_t dim : dims) {
    const size_t i = axis(call, dim, rank);
    if (i >= rank) continue;  // dim 0 or -1 of a 0-dim tensor
    if (flags[i]) call.fail(fmt::format("dimension {} appears twice in '{}'", i, name));
    flags[i] = true;
  }
  return flags;
}

Shape reduced(const Shape& shape, const std::vector<bool>& gone, bool keepdim) {
  Shape out;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!gone[i])
      out.push_back(shape[i]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

Shape resolve_size(const CallView& call, const Shape& size, int64_t count) {
  Shape out = size;
  int64_t known = 1, unknown = -1;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] == -1 && unknown < 0)
      unknown = static_cast<int64_t>(i);
    else if (size[i] < 0)
      call.fail(
          fmt::format("shape {} has a negative size; expected one -1 at most", to_string(size)));
    else
      known *= size[i];
  }
  if (unknown >= 0 && known > 0) out[static_cast<size_t>(unknown)] = count / known;
  if (unknown >= 0 && known == 0)
    call.fail(fmt::format("shape {} leaves the -1 undetermined", to_string(size)));
  if (numel(out) != count)
    call.fail(fmt::format("shape {} does not hold {} elements of {}", to_string(size), count,
                          to_string(first(call))));
  return out;
}

// --- types ---------------------------------------------------------------------------------------

DType to_float(DType d) {
  return is_floating(d) || is_complex(d) ? d : kDefaultFloat;
}
DType sum_dtype(DType d) {
  return is_floating(d) || is_complex(d) ? d : DType::i64;
}
DType real_part(DType d) {
  return d == DType::c64 ? DType::f32 : d == DType::c128 ? DType::f64 : d;
}
DType complex_of(DType d) {
  return d == DType::f64 || d == DType::c128 ? DType::c128 : DType::c64;
}

Operand operand(const CallView& call, std::string_view name) {
  if (const TensorType* t = call.maybe_tensor(name)) return {t, {}};
  const Arg* arg = call.find(name);
  if (arg == nullptr) return {};
  if (std::holds_alternative<int64_t>(*arg)) return {nullptr, DType::i64};
  if (std::holds_alternative<double>(*arg)) return {nullptr, DType::f64};
  if (std::holds_alternative<bool>(*arg)) return {nullptr, DType::boolean};
  return {};
}

namespace {

std::optional<DType> promote_maybe(std::optional<DType> a, std::optional<DType> b) {
  if (!a) return b;
  return b ? promote(*a, *b) : *a;
}

// What a higher category (tensors with dimensions before 0-dim ones before numbers) makes of a
// lower one: only the kind of the lower counts.
std::optional<DType> combine(std::optional<DType> higher, std::optional<DType> lower) {
  if (!higher) return lower;
  if (!lower || is_complex(*higher)) return higher;
  if (is_floating(*higher)) return is_complex(*lower) ? complex_of(*higher) : *higher;
  if (*higher == DType::boolean || is_floating(*lower) || is_complex(*lower))
    return promote(*higher, *lower);
  return higher;
}

}  // namespace

DType result_type(const std::vector<Operand>& operands) {
  std::optional<DType> dims, zero, number;
  for (const Operand& o : operands) {
    if (o.tensor != nullptr) {
      auto& slot = o.tensor->shape.empty() ? zero : dims;
      slot = promote_maybe(slot, o.tensor->dtype);
    } else if (o.number) {
      number = promote_maybe(number, *o.number == DType::f64 ? kDefaultFloat : *o.number);
    }
  }
  return combine(dims, combine(zero, number)).value_or(kDefaultFloat);
}

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const size_t shift = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    const int64_t x = longer[i + shift], y = shorter[i];
    if (x != y && x != 1 && y != 1) return {};
    out[i + shift] = x == 1 ? y : x;
  }
  return out;
}

void misfit(const CallView& call, const TensorType& a, const TensorType& b,
            std::string_view expected) {
  call.fail(fmt::format("{} and {} do not fit; expected {}", to_string(a), to_string(b), expected));
}

Shape broadcast_all(const CallView& call, const std::vector<const TensorType*>& tensors) {
  TensorType all;
  if (!tensors.empty() && tensors[0] != nullptr) all.dtype = tensors[0]->dtype;
  for (const TensorType* t : tensors) {
    if (t == nullptr) continue;
    auto next = broadcast(all.shape, t->shape);
    if (!next) misfit(call, all, *t, "sizes that are equal or 1, counted from the last");
    all.shape = std::move(*next);
  }
  return all.shape;
}

// --- common infer functions ----------------------------------------------------------------------

const TensorType& first(const CallView& call) {
  for (const NamedArg& arg : call.args())
    if (const TensorType* t = call.maybe_tensor(arg.name)) return *t;
  const auto all = call.operands();
  if (all.empty()) call.fail("no tensor among the arguments");
  return *all[0];
}

Types same(const CallView& call) {
  return {first(call)};
}

Types same_float(const CallView& call) {
  const TensorType& x = first(call);
  return {{x.shape, to_float(x.dtype)}};
}

Types broadcast_promoted(const CallView& call) {
  std::vector<Operand> operands;
  for (const auto name : {"self", "other", "exponent"})
    if (call.find(name) != nullptr) operands.push_back(operand(call, name));
  return {{broadcast_all(call, call.operands()), result_type(operands)}};
}

Types broadcast_bool(const CallView& call) {
  return {{broadcast_all(call, call.operands()), DType::boolean}};
}

// --- annotations ---------------------------------------------------------------------------------

std::string letter(size_t i) {
  std::string name(1, static_cast<char>('a' + i % 26));
  if (i >= 26) name += std::to_string(i / 26);
  return name;
}

DimTexts letters(size_t rank, const std::vector<bool>& flagged, std::string_view mark) {
  DimTexts out;
  for (size_t i = 0; i < rank; ++i) {
    out.push_back(letter(i));
    if (i < flagged.size() && flagged[i]) out.back() += mark;
  }
  return out;
}

std::string join_dims(const DimTexts& dims) {
  return dims.empty() ? "1" : fmt::format("{}", fmt::join(dims, " "));
}

std::string annotation(const std::vector<DimTexts>& inputs, const std::vector<DimTexts>& outputs) {
  const auto side = [](const std::vector<DimTexts>& shapes) {
    Texts texts;
    for (const auto& shape : shapes) texts.push_back(join_dims(shape));
    return fmt::format("{}", fmt::join(texts, ", "));
  };
  return side(inputs) + " -> " + side(outputs);
}

Texts spatial(const CallView& call) {
  const auto operands = call.operands();
  const Types outputs = infer(call);
  const size_t rank = outputs.at(0).shape.size();
  std::vector<DimTexts> in, out;
  for (const TensorType* t : operands) {
    DimTexts dims;
    for (size_t i = 0; i < t->shape.size(); ++i) {
      const size_t at = i + rank - t->shape.size();
      const bool stretched = t->shape[i] == 1 && outputs[0].shape[at] != 1;
      dims.push_back(stretched ? "1" : letter(at));
    }
    in.push_back(dims);
  }
  for (size_t i = 0; i < outputs.size(); ++i) out.push_back(letters(rank));
  return {annotation(in, out)};
}

Texts kept_axes(const CallView& call) {
  const Shape& in = first(call).shape;
  const Shape out = infer(call)[0].shape;
  const size_t shift = out.size() - in.size();
  DimTexts a, b;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool kept = i >= shift && in[i - shift] == out[i];
    if (i >= shift) a.push_back(kept ? letter(i) : std::to_string(in[i - shift]));
    b.push_back(kept ? letter(i) : std::to_string(out[i]));
  }
  return {annotation({a}, {b})};
}
Texts aligned(const CallView& call, const std::vector<bool>& frozen) {
  const DimTexts dims = letters(frozen.size(), frozen, "^");
  return {annotation(std::vector<DimTexts>(call.operands().size(), dims),
                     std::vector<DimTexts>(infer(call).size(), dims))};
}

}  // namespace nns::operators
