// Communicator: collectives over a group of ranks. A backend implements the virtual functions on
// contiguous CPU or device tensors of equal size on all ranks; cutting and joining along dimensions
// (also uneven ones) is done here once for all backends.
//
// All members call the same operations in the same order. While a group is `checked` (and always in
// the local backend) the ranks first compare operation, dtype, shape and number of the call, and
// throw a communication Error that names operation, group, ranks and what differs. A group of one
// rank does nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace nns::comm {

enum class Reduce { sum, max, min };

constexpr int kGreatestTag = 1 << 30;  // of a message between two ranks

inline int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

// An operation under way. Its tensor must not be touched before `wait` returns.
class Handle {
 public:
  virtual ~Handle() = default;
  virtual bool done() = 0;  // drives the operation on, never waits
  virtual void wait() = 0;
};

class Group {
 public:
  Group(std::vector<int> ranks, int position);
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::vector<int>& ranks() const { return ranks_; }  // global ranks, ascending
  int size() const { return static_cast<int>(ranks_.size()); }
  int position() const { return position_; }  // of this rank in `ranks`
  // Payload bytes this rank has sent through the group.
  int64_t bytes_sent() const { return bytes_sent_; }
  // Number of this group for launch::Waiting.
  uint32_t note() const { return note_; }
  // Compares each further collective of this group between the ranks before it starts.
  void set_checked(bool checked) { checked_ = checked; }

  // Reduces in place. Addends are added in order of rank; bfloat16 and float16 in float32.
  void all_reduce(at::Tensor& tensor, Reduce reduce = Reduce::sum);
  // The same without waiting, where the backend can; else complete on return.
  std::shared_ptr<Handle> all_reduce_async(at::Tensor& tensor, Reduce reduce = Reduce::sum);
  // Joins the local parts along `dim`; `whole` is its length in the result (parts as part_of).
  at::Tensor all_gather(const at::Tensor& local, int64_t dim, int64_t whole);
  // Begins to, without waiting where the backend can: the next all_gather of this tensor ends it.
  void all_gather_ahead(const at::Tensor& local, int64_t dim, int64_t whole);
  // Sums, and keeps this rank's part along `dim`.
  at::Tensor reduce_scatter(const at::Tensor& addend, int64_t dim);
  // The same of several of one dtype, each along its own dimension, in one message. Where the call
  // is `empty` this rank's addends are zeros.
  std::vector<at::Tensor> reduce_scatter(const std::vector<at::Tensor>& addends,
                                         const std::vector<int64_t>& dims, bool empty);
  // Cuts along `dim` and joins along `from`, whose whole length is `whole`.
  at::Tensor all_to_all(const at::Tensor& local, int64_t dim, int64_t from, int64_t whole);
  void broadcast(at::Tensor& tensor, int root);  // root: position in the group
  // Point to point; `peer` is a position. A receive takes the oldest message of its tag (≥ 0)
  // whatever else is under way, and a send never waits for it: whether a program ends must not
  // depend on how much a backend buffers.
  virtual void send(const at::Tensor& tensor, int peer, int tag = 0) = 0;
  virtual void recv(at::Tensor& tensor, int peer, int tag = 0) = 0;
  // Returns when all sends were handed over.
  virtual void flush() {}
  virtual void barrier() = 0;
  // Every rank gets what each rank gave, in order of position.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;

 protected:
  // Backends: contiguous tensors; `all` has size() times the elements of `one`.
  virtual void do_all_reduce(at::Tensor& tensor, Reduce reduce) = 0;
  // Gives nullptr when it is complete already.
  virtual std::shared_ptr<Handle> start_all_reduce(at::Tensor& tensor, Reduce reduce) {
    do_all_reduce(tensor, reduce);
    return nullptr;
  }
  virtual void do_all_gather(at::Tensor& all, const at::Tensor& one) = 0;
  // Gives nullptr when it is complete already.
  virtual std::shared_ptr<Handle> start_all_gather(at::Tensor& all, const at::Tensor& one) {
    do_all_gather(all, one);
    return nullptr;
  }
  virtual void do_reduce_scatter(at::Tensor& one, const at::Tensor& all) = 0;
  virtual void do_all_to_all(at::Tensor& out, const at::Tensor& in) = 0;
  virtual void do_broadcast(at::Tensor& tensor, int root) = 0;
  void count(int64_t bytes) { bytes_sent_ += bytes; }
  // Counts what an all-reduce sends.
  void count_reduced(const at::Tensor& tensor);
  // What the ranks must agree on, as text (`like` may be undefined); throws if calls[k] differ.
  std::string call_text(const char* operation, const at::Tensor& like);
  void compare_calls(const char* operation, const std::vector<std::string>& calls) const;
  // Of a backend that compares by itself.
  virtual bool compares() const { return false; }

 private:
  void check(const char* operation, const at::Tensor& like);

  struct Ahead {
    at::Tensor local, all;
    std::shared_ptr<Handle> handle;  // nullptr: it is complete
  };
  std::map<const at::TensorImpl*, Ahead> ahead_;  // begun, by what is gathered

  std::vector<int> ranks_;
  int position_;
  uint32_t note_;
  int64_t bytes_sent_ = 0;
  uint64_t calls_ = 0;
  bool checked_ = false;
};

// One rank's door to all others. Groups are made by their members only, in an agreed order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string backend() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Collective over `ranks` (ascending, distinct, this rank among them).
  virtual std::shared_ptr<Group> group(std::vector<int> ranks) = 0;
};

}  // namespace nns::comm
