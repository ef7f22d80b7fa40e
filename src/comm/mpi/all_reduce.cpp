#include "comm/mpi/all_reduce.h"

#include <algorithm>

#include "comm/reduce.h"

namespace nns::comm {
namespace {

// Small enough that a segment is still in the cache when it is summed.
constexpr int64_t kSegmentBytes = 1 << 20;

// Two ranks swap whole tensors up to this size: one round instead of two.
constexpr int64_t kDirectBytes = 32 << 10;

constexpr const char* kName = "all_reduce";

}  // namespace

AllReduce::AllReduce(MPI_Comm comm, int position, int size, int tag, void* data, int64_t elements,
                     at::ScalarType type, Reduce reduce)
    : comm_(comm),
      position_(position),
      size_(size),
      tag_(tag),
      data_(static_cast<char*>(data)),
      elements_(elements),
      width_(static_cast<int64_t>(c10::elementSize(type))),
      type_(type),
      reduce_(reduce) {
  direct_ = size == 2 && elements * width_ <= kDirectBytes;
  segment_ = std::max<int64_t>(1, kSegmentBytes / width_);
}

int64_t AllReduce::chunk_start(int64_t elements, int k) const {
  const int64_t chunk = (elements + size_ - 1) / size_;
  return std::min(k * chunk, elements);
}

int64_t AllReduce::chunk_length(int64_t elements, int k) const {
  return chunk_start(elements, k + 1) - chunk_start(elements, k);
}

int64_t AllReduce::bytes_to_send() const {
  if (direct_) return elements_ * width_;
  int64_t sum = 0;
  for (int64_t start = 0; start < elements_; start += segment_) {
    const int64_t elements = std::min(segment_, elements_ - start);
    const int64_t mine = chunk_length(elements, position_);
    sum += elements - mine + (size_ - 1) * mine;
  }
  return sum * width_;
}

bool AllReduce::start_segment(Slot& slot) {
  if (next_ >= elements_) return false;
  slot.stage = Stage::parts;
  slot.start = next_;
  slot.elements = std::min(segment_, elements_ - next_);
  next_ += slot.elements;
  const int64_t mine = (direct_ ? slot.elements : chunk_length(slot.elements, position_)) * width_;
  if (!slot.parts) slot.parts.reset(new char[static_cast<size_t>((size_ - 1) * mine)]);
  slot.requests.clear();
  int64_t at_part = 0;
  for (int k = 0; k < size_; ++k) {
    if (k == position_) continue;
    if (mine > 0)
      check_mpi(MPI_Irecv(slot.parts.get() + at_part, static_cast<int>(mine), MPI_BYTE, k, tag_,
                          comm_, &slot.requests.emplace_back()),
                kName);
    at_part += mine;
  }
  for (int i = 1; i < size_; ++i) {
    const int k = (position_ + i) % size_;
    const int64_t start = direct_ ? slot.start : slot.start + chunk_start(slot.elements, k);
    const int64_t bytes = (direct_ ? slot.elements : chunk_length(slot.elements, k)) * width_;
    if (bytes == 0) continue;
    check_mpi(MPI_Isend(at(start), static_cast<int>(bytes), MPI_BYTE, k, tag_, comm_,
                        &slot.requests.emplace_back()),
              kName);
  }
  return true;
}

// Sums the parts into the tensor; sends and awaits results.
void AllReduce::finish_parts(Slot& slot) {
  const int64_t start = direct_ ? slot.start : slot.start + chunk_start(slot.elements, position_);
  const int64_t length = direct_ ? slot.elements : chunk_length(slot.elements, position_);
  std::array<const void*, 64> few;
  std::vector<const void*> many;
  const void** addends = few.data();
  if (size_ > static_cast<int>(few.size())) {
    many.resize(static_cast<size_t>(size_));
    addends = many.data();
  }
  for (int k = 0, i = 0; k < size_; ++k)
    addends[k] = k == position_ ? at(start) : slot.parts.get() + i++ * length * width_;
  reduce_in_order(at(start), addends, size_, length, type_, reduce_);
  reduced_ += slot.elements;
  slot.requests.clear();
  slot.stage = direct_ ? Stage::idle : Stage::results;
  if (direct_) return;
  for (int k = 0; k < size_; ++k) {
    const int64_t bytes = chunk_length(slot.elements, k) * width_;
    if (k == position_ || bytes == 0) continue;
    check_mpi(MPI_Irecv(at(slot.start + chunk_start(slot.elements, k)), static_cast<int>(bytes),
                        MPI_BYTE, k, tag_ + 1, comm_, &slot.requests.emplace_back()),
              kName);
  }
  for (int i = 1; i < size_ && length > 0; ++i) {
    check_mpi(MPI_Isend(at(start), static_cast<int>(length * width_), MPI_BYTE,
                        (position_ + i) % size_, tag_ + 1, comm_, &slot.requests.emplace_back()),
              kName);
  }
}

bool AllReduce::step() {
  if (done_) return true;
  bool busy = false;
  for (Slot& slot : slots_) {
    if (slot.stage == Stage::parts && slot.start == reduced_ && test_all(slot.requests, kName))
      finish_parts(slot);
    else if (slot.stage == Stage::results && test_all(slot.requests, kName))
      slot.stage = Stage::idle;
    if (slot.stage == Stage::idle) start_segment(slot);
    busy = busy || slot.stage != Stage::idle;
  }
  done_ = !busy;
  return done_;
}

}  // namespace nns::comm
