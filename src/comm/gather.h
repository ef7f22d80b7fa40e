// All-gather over messages, all of them under way at one time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "comm/messages.h"

namespace nns::comm {

class AllGather : public Operation {
 public:
  // `all` has a block for each rank; `one` is this rank's. Both are contiguous, not empty and on
  // the CPU. `tag` belongs to this operation alone.
  AllGather(std::unique_ptr<Batch> messages, int position, int size, int tag, at::Tensor all,
            at::Tensor one);
  bool step() override;

 private:
  void post();

  std::unique_ptr<Batch> messages_;
  int position_, size_, tag_;
  at::Tensor all_, one_;
  bool posted_ = false;
};

}  // namespace nns::comm
