// All-reduce over point-to-point messages, in segments: while one is summed, the next is under way.
#pragma once

#include <array>

#include "comm/mpi/world.h"

namespace nns::comm {

class AllReduce : public Operation {
 public:
  // `data` stays with the caller until the operation is done. `tag` and the one above it belong to
  // this operation alone.
  AllReduce(MPI_Comm comm, int position, int size, int tag, void* data, int64_t elements,
            at::ScalarType type, Reduce reduce);
  bool step() override;
  bool done() const { return done_; }
  // By this rank, in all rounds.
  int64_t bytes_to_send() const;

 private:
  // Each rank reduces its chunk of a segment, then gives it to the others.
  enum class Stage { idle, parts, results };
  struct Slot {
    Stage stage = Stage::idle;
    int64_t start = 0, elements = 0;
    std::vector<MPI_Request> requests;
    std::unique_ptr<char[]> parts;  // of my chunk, from the others, in order of rank
  };

  bool start_segment(Slot& slot);
  void finish_parts(Slot& slot);
  // Chunk k of a segment of so many elements.
  int64_t chunk_start(int64_t elements, int k) const;
  int64_t chunk_length(int64_t elements, int k) const;
  char* at(int64_t element) const { return data_ + element * width_; }

  MPI_Comm comm_;
  int position_, size_, tag_;
  char* data_;
  int64_t elements_, width_, segment_;
  // Elements whose segments are started, and reduced: in order, as messages match by order.
  int64_t next_ = 0, reduced_ = 0;
  at::ScalarType type_;
  Reduce reduce_;
  bool direct_, done_ = false;
  std::array<Slot, 3> slots_;
};

}  // namespace nns::comm
