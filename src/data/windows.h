// Batches of windows over a token sequence. Which windows a micro-batch holds is a pure function of
// (seed, micro-batch number), so a run resumes from the number alone.
#pragma once

#include <memory>

#include "data/tokens.h"

namespace nns::data {

struct Batch {
  int64_t rows = 0, block = 0;
  std::vector<int64_t> x, y;  // rows × block; y is x moved on by one token
};

struct WindowsOptions {
  enum class Order {
    random,  // endless, any start, drawn anew for each sample
    epoch,   // each epoch holds every window of a fixed grid once, permuted
    pass     // one epoch in order, with the shorter last window: evaluation
  };
  int64_t begin = 0, stop = 0;  // the part of the sequence that windows stay inside
  int64_t block = 0, batch = 0;
  Order order = Order::random;
  bool drop_last = true;  // epoch: leave out the last batch if it is not full
  uint64_t seed = 0;
  int64_t vocab = 0;  // ids must be below; 0 leaves them unchecked
};

class Windows {
 public:
  // Throws a usage Error for a block or batch below 1, a data Error for a part that is too short.
  Windows(std::shared_ptr<const Tokens> tokens, WindowsOptions options);

  const WindowsOptions& options() const { return options_; }
  // Micro-batches an epoch; 0 when endless.
  int64_t per_epoch() const { return per_epoch_; }
  // Returns the positions in the sequence at which the windows of micro-batch n start.
  std::vector<int64_t> starts(int64_t n) const;
  // Returns micro-batch n. Throws a data Error that names the position of an id ≥ vocab.
  Batch batch(int64_t n) const;

 private:
  std::shared_ptr<const Tokens> tokens_;
  WindowsOptions options_;
  int64_t whole_ = 0;      // whole windows of the grid
  int64_t remainder_ = 0;  // targets in the shorter last window (order pass)
  int64_t per_epoch_ = 0;
};

}  // namespace nns::data
