// A group whose backend only moves bytes between processes: reductions are ours, in order of rank,
// so that every backend gives the bits of the local one.
#pragma once

#include "comm/group.h"

namespace nns::comm {

class StagedGroup : public Group {
 public:
  using Group::Group;

  void send(const at::Tensor& tensor, int peer, int tag) override;
  void recv(at::Tensor& tensor, int peer, int tag) override;
  std::vector<std::string> exchange(const std::string& mine) override;

 protected:
  // all[k] = what rank k gave; out[k] = in[position] of rank k. Blocks of `bytes` > 0.
  virtual void gather_bytes(void* all, const void* one, int64_t bytes) = 0;
  virtual void swap_bytes(void* out, const void* in, int64_t bytes) = 0;
  virtual void broadcast_bytes(void* data, int64_t bytes, int root) = 0;
  // The sender gives its copy away and need not wait.
  virtual void send_bytes(at::Tensor message, int peer, int tag) = 0;
  virtual void recv_bytes(void* data, int64_t bytes, int peer, int tag) = 0;

  void do_all_reduce(at::Tensor& tensor, Reduce reduce) override;
  void do_all_gather(at::Tensor& all, const at::Tensor& one) final;
  void do_reduce_scatter(at::Tensor& one, const at::Tensor& all) final;
  void do_all_to_all(at::Tensor& out, const at::Tensor& in) final;
  void do_broadcast(at::Tensor& tensor, int root) final;

  // Two ranks swap whole tensors up to this size: one round instead of two.
  static constexpr int64_t kDirectBytes = 32 << 10;
};

}  // namespace nns::comm
