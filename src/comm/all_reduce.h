// All-reduce over messages, piece by piece: while one is summed, the next are under way.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>

#include "comm/group.h"
#include "comm/messages.h"

namespace nns::comm {

// Each rank reduces its chunk of the tensor, in order of rank, and gives it to the others.
class AllReduce : public Operation {
 public:
  // `tensor` is contiguous and on the CPU. `tag` and the one above it belong to this operation
  // alone. `piece_bytes`: of one piece of all chunks.
  AllReduce(const std::function<std::unique_ptr<Batch>()>& open, int position, int size, int tag,
            at::Tensor tensor, Reduce reduce, int64_t piece_bytes);
  bool step() override;

 private:
  // One piece of each chunk: `elements` of them (fewer in the last chunks) from `start`.
  enum class Stage { idle, parts, results };
  struct Slot {
    Stage stage = Stage::idle;
    int64_t start = 0, elements = 0;
    std::unique_ptr<char[]> parts;    // of my chunk, from the others, in order of rank
    std::unique_ptr<Batch> messages;  // dropped first: they may still write into parts
  };

  void start_piece(Slot& slot);
  void finish_parts(Slot& slot);
  // Where the piece lies in chunk k, and how many elements it has there.
  char* data(const Slot& slot, int k) const;
  int64_t length(const Slot& slot, int k) const;

  int position_, size_, tag_;
  at::Tensor tensor_;
  char* data_;
  int64_t elements_, width_;
  Reduce reduce_;
  bool direct_, done_ = false;
  int64_t chunk_, piece_;
  // Elements of each chunk that are started, and reduced: in order, as messages match by order.
  int64_t next_ = 0, reduced_ = 0;
  std::array<Slot, 3> slots_;
};

}  // namespace nns::comm
