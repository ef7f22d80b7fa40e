#include "lower/storage.h"

#include <algorithm>
#include <numeric>

#include "lower/uses.h"
#include "operators/record.h"

namespace nns::lower {
namespace {

using operators::View;

// Views that keep the order of elements, and copy where that cannot be told by strides.
bool keeps_order(View view) {
  return view == View::strided || view == View::shape || view == View::reshape ||
         view == View::flatten || view == View::same || view == View::dense;
}

// Whether elements change; complex numbers and pairs of real ones are one memory.
bool converts(const TensorType& from, const TensorType& to) {
  return from.dtype != to.dtype && is_complex(from.dtype) == is_complex(to.dtype);
}

}  // namespace

Storage::Storage(const Program& program, const std::vector<int>& strided)
    : program_(program),
      root_(program.slots.size()),
      contiguous_(program.slots.size(), true),
      members_(program.slots.size()) {
  std::iota(root_.begin(), root_.end(), 0);
  for (int slot : strided) contiguous_[static_cast<size_t>(slot)] = false;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) see(instr);
  for (size_t i = 0; i < root_.size(); ++i)
    members_[static_cast<size_t>(root_[i])].push_back(static_cast<int>(i));
}

void Storage::see(const Instr& instr) {
  if (instr.kind != InstrKind::call) return;
  const std::vector<int> in = reads(instr);
  if (in.empty()) return;
  const auto& type = program_.slot(in[0]).type;
  for (int out : instr.outs) {
    if (out < 0) continue;
    const size_t o = static_cast<size_t>(out), from = static_cast<size_t>(in[0]);
    const operators::Record* info = operators::find(instr.op);
    const View kind = info != nullptr ? info->view : View::none;
    const TensorType& made = program_.slot(out).type;
    const bool same = info != nullptr && info->identity && made == type;
    bool view = is_in_place(instr) || same || (is_view(kind) && !converts(type, made));
    if (keeps_order(kind))
      view = contiguous_[from];
    else if (view && !is_in_place(instr) && !same)
      contiguous_[o] = false;
    if (view) root_[o] = root_[from];
  }
}

int64_t Storage::bytes(int root) const {
  return bytes_of(program_.slot(root).type);
}

bool Storage::allocates(const Instr& instr) const {
  switch (instr.kind) {
    case InstrKind::release:
    case InstrKind::update:
      return false;
    case InstrKind::accumulate:
      return !is_owned(instr);
    case InstrKind::call:
      break;
  }
  if (has_effect(instr) || is_again(instr)) return true;
  return std::any_of(instr.outs.begin(), instr.outs.end(),
                     [&](int out) { return out >= 0 && root(out) == out; });
}

}  // namespace nns::lower
