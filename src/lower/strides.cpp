#include "lower/strides.h"

#include <algorithm>
#include <numeric>

#include "lower/uses.h"
#include "operators/record.h"
#include "operators/room.h"

namespace nns::lower {
namespace {

using operators::CallView;
using operators::View;

// Whether elements change; complex numbers and pairs of real ones are one memory.
bool converts(const TensorType& from, const TensorType& to) {
  return from.dtype != to.dtype && is_complex(from.dtype) == is_complex(to.dtype);
}

// Whether elements lie in row-major order; strides of single ones do not count.
bool is_dense(const Shape& shape, const Shape& strides) {
  const Shape dense = row_major(shape);
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != 1 && strides[d] != dense[d]) return false;
  return true;
}

size_t wrap(int64_t d, size_t rank) {
  return static_cast<size_t>(d < 0 ? d + static_cast<int64_t>(rank) : d);
}

}  // namespace

Shape row_major(const Shape& shape) {
  Shape out(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    out[d] = step;
    step *= std::max<int64_t>(1, shape[d]);
  }
  return out;
}

std::optional<Shape> reshaped(const Shape& shape, const Shape& strides, const Shape& to) {
  if (numel(shape) == 0 || shape == to) return shape == to ? strides : row_major(to);
  // Runs of dimensions of `shape` that lie as one are cut into runs of dimensions of `to`.
  Shape out(to.size());
  size_t next = to.size();
  int64_t base = strides.empty() ? 1 : strides.back(), elements = 1, given = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    elements *= shape[d];
    if (d > 0 && (shape[d - 1] == 1 || strides[d - 1] == elements * base)) continue;
    while (next > 0 && (given < elements || to[next - 1] == 1)) {
      out[--next] = given * base;
      given *= to[next];
    }
    if (given != elements) return std::nullopt;
    if (d > 0) {
      base = strides[d - 1];
      elements = given = 1;
    }
  }
  while (next > 0) out[--next] = 1;  // sizes of 1
  return out;
}

Strides::Strides(const Program& program)
    : program_(program), places_(program.slots.size()), bytes_(program.slots.size()) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const TensorType& type = program.slots[i].type;
    places_[i] = {static_cast<int>(i), row_major(type.shape)};
    bytes_[i] = bytes_of(type);
  }
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) see(instr);
}

void Strides::see(const Instr& instr) {
  if (instr.kind != InstrKind::call) return;
  const std::vector<int> in = reads(instr);
  const operators::Record* info = operators::find(instr.op);
  if (info != nullptr && !info->registered && !is_again(instr) && see_laid(instr)) return;
  if (!in.empty()) see_call(instr, in);
}

// Results whose operator says how they lie.
bool Strides::see_laid(const Instr& instr) {
  const CallView call(instr.op, instr.args,
                      [this](int id) -> const TensorType& { return type(id); });
  const std::vector<operators::Laid> laid = operators::laid(call);
  int first = -1;
  for (size_t i = 0; i < laid.size() && i < instr.outs.size(); ++i) {
    const int out = instr.outs[i];
    if (out < 0) continue;
    Place& place = places_[static_cast<size_t>(out)];
    place = {out, laid[i].strides, laid[i].offset};
    if (laid[i].elements == 0) continue;
    if (first < 0) {
      first = out;
      bytes_[static_cast<size_t>(out)] = laid[i].elements * size_of(type(out).dtype);
    }
    place.root = first;
  }
  return !laid.empty();
}

void Strides::see_call(const Instr& instr, const std::vector<int>& in) {
  const operators::Record* info = operators::find(instr.op);
  const View kind = info != nullptr ? info->view : View::none;
  const Place from = places_[static_cast<size_t>(in[0])];
  for (size_t i = 0; i < instr.outs.size(); ++i) {
    const int out = instr.outs[i];
    if (out < 0) continue;
    Place& place = places_[static_cast<size_t>(out)];
    const bool same = info != nullptr && info->identity && type(out) == type(in[0]);
    if (is_in_place(instr) || (same && kind != View::dense))
      place = from;
    else if (info != nullptr && operators::joins(instr.op))
      join(instr, in);
    else if (is_view(kind) && !converts(type(in[0]), type(out)))
      place = viewed(instr, i, in[0]);
    if (place.root < 0) place = {out, row_major(type(out).shape)};  // copied
  }
}

// A view where the parts lie side by side.
bool Strides::join(const Instr& instr, const std::vector<int>& in) {
  const CallView call(instr.op, instr.args,
                      [this](int id) -> const TensorType& { return type(id); });
  const size_t dim = wrap(call.integer("dim", 0), type(in[0]).shape.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const Place& place = places_[static_cast<size_t>(in[i])];
    if (!place.strides) return false;
    if (i == 0) continue;
    const Place& before = places_[static_cast<size_t>(in[i - 1])];
    if (before.root != place.root || before.strides != place.strides ||
        place.offset != before.offset + type(in[i - 1]).shape[dim] * (*before.strides)[dim])
      return false;
  }
  places_[static_cast<size_t>(instr.outs[0])] = places_[static_cast<size_t>(in[0])];
  return true;
}

// Where result `index` of a view of slot `from` lies; root -1: in memory of its own.
Strides::Place Strides::viewed(const Instr& instr, size_t index, int from) const {
  const CallView call(instr.op, instr.args,
                      [this](int id) -> const TensorType& { return type(id); });
  const View kind = operators::find(instr.op)->view;
  const Place& base = places_[static_cast<size_t>(from)];
  const Shape &shape = type(from).shape, &to = type(instr.outs[index]).shape;
  const Place copy{-1}, unknown{base.root};
  if (!base.strides)
    return kind == View::reshape || kind == View::flatten || kind == View::dense ? copy : unknown;
  Place out = base;
  Shape& strides = *out.strides;
  const auto dim = [&](size_t arg) {
    return wrap(std::get<int64_t>(call.args().at(arg).value), shape.size());
  };
  switch (kind) {
    case View::narrow: {
      const std::optional<int64_t> start = call.maybe_integer("start");
      if (!start) return unknown;
      out.offset += (*start < 0 ? *start + shape[dim(1)] : *start) * strides[dim(1)];
      return out;
    }
    case View::slice: {
      const size_t d = call.has("dim") ? call.dim("dim") : 0;
      const int64_t start = call.integer("start", 0);
      out.offset +=
          std::clamp<int64_t>(start < 0 ? start + shape[d] : start, 0, shape[d]) * strides[d];
      strides[d] *= call.integer("step", 1);
      return out;
    }
    case View::select: {
      const int64_t at = call.integer("index");
      out.offset += (at < 0 ? at + shape[dim(1)] : at) * strides[dim(1)];
      strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(dim(1)));
      return out;
    }
    case View::swap:
      std::swap(strides[dim(1)], strides[dim(2)]);
      return out;
    case View::transpose:
      std::reverse(strides.begin(), strides.end());
      return out;
    case View::permute: {
      const std::vector<int64_t> dims = call.dims("dims");
      for (size_t i = 0; i < dims.size(); ++i)
        strides[i] = (*base.strides)[static_cast<size_t>(dims[i])];
      return out;
    }
    case View::strided:
    case View::shape:
    case View::reshape:
    case View::flatten: {
      std::optional<Shape> laid = reshaped(shape, strides, to);
      if (!laid) return kind == View::strided || kind == View::shape ? unknown : copy;
      out.strides = std::move(laid);
      return out;
    }
    case View::same:
      return out;
    case View::dense:
      return is_dense(shape, strides) ? out : copy;
    case View::split: {
      const size_t d = call.has("dim") ? static_cast<size_t>(call.dim("dim")) : 0;
      for (size_t i = 0; i < index; ++i)
        if (instr.outs[i] >= 0) out.offset += type(instr.outs[i]).shape[d] * strides[d];
      if (std::any_of(instr.outs.begin(), instr.outs.begin() + static_cast<std::ptrdiff_t>(index),
                      [](int slot) { return slot < 0; }))
        out.strides.reset();  // how far the parts before it reach is not known
      return out;
    }
    case View::unbind: {
      const size_t d = call.has("dim") ? static_cast<size_t>(call.dim("dim")) : 0;
      out.offset += static_cast<int64_t>(index) * strides[d];
      strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(d));
      return out;
    }
    case View::spread: {
      Shape wide(to.size(), 0);
      const size_t more = to.size() - shape.size();
      for (size_t d = 0; d < shape.size(); ++d)
        wide[d + more] = shape[d] == to[d + more] ? strides[d] : 0;
      out.strides = std::move(wide);
      return out;
    }
    default:
      return unknown;
  }
}

}  // namespace nns::lower
