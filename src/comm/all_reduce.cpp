#include "comm/all_reduce.h"

#include <algorithm>
#include <vector>

#include "comm/reduce.h"

namespace nns::comm {
namespace {

// Two ranks swap whole tensors up to this size: one round instead of two.
constexpr int64_t kDirectBytes = 32 << 10;

}  // namespace

AllReduce::AllReduce(const std::function<std::unique_ptr<Batch>()>& open, int position, int size,
                     int tag, at::Tensor tensor, Reduce reduce, int64_t piece_bytes)
    : position_(position),
      size_(size),
      tag_(tag),
      tensor_(std::move(tensor)),
      data_(static_cast<char*>(tensor_.mutable_data_ptr())),
      elements_(tensor_.numel()),
      width_(static_cast<int64_t>(tensor_.element_size())),
      reduce_(reduce),
      direct_(size == 2 && elements_ * width_ <= kDirectBytes),
      chunk_(direct_ ? elements_ : (elements_ + size - 1) / size),
      piece_(std::max<int64_t>(1, piece_bytes / width_ / size)) {
  if (direct_) piece_ = chunk_;
  int64_t started = 0;
  for (Slot& slot : slots_) {
    const int64_t longest = std::min(piece_, chunk_ - started);
    if (longest <= 0) break;
    started += longest;
    slot.messages = open();
    slot.parts.reset(new char[static_cast<size_t>((size_ - 1) * longest * width_)]);
  }
}

char* AllReduce::data(const Slot& slot, int k) const {
  return data_ + ((direct_ ? 0 : k * chunk_) + slot.start) * width_;
}

int64_t AllReduce::length(const Slot& slot, int k) const {
  if (direct_) return elements_;
  return std::clamp<int64_t>(elements_ - k * chunk_ - slot.start, 0, slot.elements);
}

void AllReduce::start_piece(Slot& slot) {
  slot.stage = Stage::parts;
  slot.start = next_;
  slot.elements = std::min(piece_, chunk_ - next_);
  next_ += slot.elements;
  const int64_t mine = length(slot, position_) * width_;
  for (int k = 0, i = 0; k < size_ && mine > 0; ++k)
    if (k != position_) slot.messages->recv(slot.parts.get() + i++ * mine, mine, k, tag_);
  for (int i = 1; i < size_; ++i) {
    const int k = (position_ + i) % size_;
    const int64_t bytes = length(slot, k) * width_;
    if (bytes > 0) slot.messages->send(data(slot, direct_ ? position_ : k), bytes, k, tag_);
  }
}

// Sums the parts into the tensor; sends and awaits results.
void AllReduce::finish_parts(Slot& slot) {
  const int64_t mine = length(slot, position_);
  std::array<const void*, 64> few;
  std::vector<const void*> many;
  const void** addends = few.data();
  if (size_ > static_cast<int>(few.size())) {
    many.resize(static_cast<size_t>(size_));
    addends = many.data();
  }
  char* const out = data(slot, position_);
  for (int k = 0, i = 0; k < size_; ++k)
    addends[k] = k == position_ ? out : slot.parts.get() + i++ * mine * width_;
  reduce_in_order(out, addends, size_, mine, tensor_.scalar_type(), reduce_);
  reduced_ += slot.elements;
  slot.stage = direct_ ? Stage::idle : Stage::results;
  if (direct_) return;
  for (int k = 0; k < size_; ++k) {
    const int64_t bytes = length(slot, k) * width_;
    if (k != position_ && bytes > 0) slot.messages->recv(data(slot, k), bytes, k, tag_ + 1);
  }
  for (int i = 1; i < size_ && mine > 0; ++i)
    slot.messages->send(out, mine * width_, (position_ + i) % size_, tag_ + 1);
}

bool AllReduce::step() {
  if (done_) return true;
  bool busy = false;
  for (Slot& slot : slots_) {
    if (slot.stage == Stage::parts && slot.start == reduced_ && slot.messages->step())
      finish_parts(slot);
    else if (slot.stage == Stage::results && slot.messages->step())
      slot.stage = Stage::idle;
    if (slot.stage == Stage::idle && next_ < chunk_) start_piece(slot);
    busy = busy || slot.stage != Stage::idle;
  }
  if (busy) return false;
  done_ = true;
  tensor_.reset();  // whoever keeps the operation need not keep the bytes
  slots_ = {};
  return true;
}

}  // namespace nns::comm
