#include "comm/gather.h"

#include <cstring>

namespace nns::comm {

AllGather::AllGather(std::unique_ptr<Batch> messages, int position, int size, int tag,
                     at::Tensor all, at::Tensor one)
    : messages_(std::move(messages)),
      position_(position),
      size_(size),
      tag_(tag),
      all_(std::move(all)),
      one_(std::move(one)) {}

void AllGather::post() {
  const auto bytes = static_cast<int64_t>(one_.nbytes());
  char* const to = static_cast<char*>(all_.mutable_data_ptr());
  std::memcpy(to + position_ * bytes, one_.const_data_ptr(), static_cast<size_t>(bytes));
  for (int i = 1; i < size_; ++i) {
    const int k = (position_ + size_ - i) % size_;
    messages_->recv(to + k * bytes, bytes, k, tag_);
  }
  for (int i = 1; i < size_; ++i)
    messages_->send(one_.const_data_ptr(), bytes, (position_ + i) % size_, tag_);
  posted_ = true;
}

bool AllGather::step() {
  if (!messages_) return true;
  if (!posted_) post();
  if (!messages_->step()) return false;
  messages_.reset();
  all_.reset();  // whoever keeps the operation need not keep the bytes
  one_.reset();
  return true;
}

}  // namespace nns::comm
