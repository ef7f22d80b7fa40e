// A group whose back end only moves bytes between processes: reductions are ours, in order of rank,
// so that every back end gives the bits of the local one.
#pragma once

#include "comm/all_reduce.h"
#include "comm/group.h"
#include "comm/messages.h"

namespace nns::comm {

class StagedGroup : public Group {
 public:
  using Group::Group;

  void send(const at::Tensor& tensor, int peer, int tag) override;
  void recv(at::Tensor& tensor, int peer, int tag) override;
  std::vector<std::string> exchange(const std::string& mine) override;

 protected:
  // `operation` is for messages of errors.
  virtual std::unique_ptr<Batch> batch(const char* operation) = 0;
  // Returns when the operation is done.
  virtual void wait(Operation& operation, const char* name) = 0;
  // A message that nobody waits for.
  virtual void keep(std::unique_ptr<Batch> message, at::Tensor bytes) = 0;
  virtual std::shared_ptr<Handle> start(std::shared_ptr<Operation> operation, const char* name) = 0;
  // Long enough to outweigh what a message costs, short enough to be still in the cache when it is
  // summed.
  virtual int64_t piece_bytes() const = 0;
  virtual void broadcast_bytes(void* data, int64_t bytes, int root) = 0;

  void do_all_reduce(at::Tensor& tensor, Reduce reduce) final;
  std::shared_ptr<Handle> start_all_reduce(at::Tensor& tensor, Reduce reduce) final;
  void do_all_gather(at::Tensor& all, const at::Tensor& one) final;
  std::shared_ptr<Handle> start_all_gather(at::Tensor& all, const at::Tensor& one) final;
  void do_reduce_scatter(at::Tensor& one, const at::Tensor& all) final;
  void do_all_to_all(at::Tensor& out, const at::Tensor& in) final;
  void do_broadcast(at::Tensor& tensor, int root) final;

 private:
  AllReduce all_reduce_of(const at::Tensor& tensor, Reduce reduce);
  // The first of two tags for an operation that may be under way beside others.
  int next_tag();
  // all[k] = what rank k gave; out[k] = in[position] of rank k. Blocks of `bytes` > 0.
  void gather_bytes(void* all, const void* one, int64_t bytes);
  void swap_bytes(void* out, const void* in, int64_t bytes);
  // Receives to(k) from each other rank k and sends it from(k).
  template <class To, class From>
  void move_between_all(const char* name, To to, From from, int64_t bytes);

  int turn_ = 0;
};

}  // namespace nns::comm
