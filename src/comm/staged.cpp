#include "comm/staged.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

#include "comm/gather.h"
#include "comm/reduce.h"

namespace nns::comm {
namespace {

// Tags: 0 are the moves between all; then those of what is under way beside others, in turn, so
// that rounds do not meet; then those of send and recv.
constexpr int kTagMove = 0, kTagFirst = 1, kTagPairs = 8192, kTagSend = kTagFirst + 2 * kTagPairs;

// Addresses of n blocks of `bytes` that lie one behind the other.
std::vector<const void*> blocks_of(const void* data, int n, int64_t bytes) {
  std::vector<const void*> blocks;
  for (int k = 0; k < n; ++k) blocks.push_back(static_cast<const char*>(data) + k * bytes);
  return blocks;
}

}  // namespace

void StagedGroup::send(const at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return;
  at::Tensor copy = tensor.contiguous().clone();
  auto message = batch("send");
  message->send(copy.const_data_ptr(), bytes_of(copy), peer, kTagSend + tag);
  keep(std::move(message), std::move(copy));
  count(bytes_of(tensor));
}

void StagedGroup::recv(at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return;
  at::Tensor dense = tensor.contiguous();
  auto message = batch("recv");
  message->recv(dense.mutable_data_ptr(), bytes_of(dense), peer, kTagSend + tag);
  wait(*message, "recv");
  if (!dense.is_same(tensor)) tensor.copy_(dense);
}

std::vector<std::string> StagedGroup::exchange(const std::string& mine) {
  const size_t n = static_cast<size_t>(size());
  if (n == 1) return {mine};
  std::vector<int64_t> lengths(n);
  const int64_t length = static_cast<int64_t>(mine.size());
  gather_bytes(lengths.data(), &length, sizeof length);
  const size_t longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded = mine, all(n * longest, '\0');
  padded.resize(longest);
  if (longest > 0) gather_bytes(all.data(), padded.data(), static_cast<int64_t>(longest));
  std::vector<std::string> texts;
  for (size_t k = 0; k < n; ++k)
    texts.push_back(all.substr(k * longest, static_cast<size_t>(lengths[k])));
  return texts;
}

int StagedGroup::next_tag() {
  const int tag = kTagFirst + 2 * turn_;
  turn_ = (turn_ + 1) % kTagPairs;
  return tag;
}

AllReduce StagedGroup::all_reduce_of(const at::Tensor& tensor, Reduce reduce) {
  const int tag = next_tag();
  count_reduced(tensor);
  return {[this] { return batch("all_reduce"); },
          position(),
          size(),
          tag,
          tensor,
          reduce,
          piece_bytes()};
}

void StagedGroup::do_all_reduce(at::Tensor& tensor, Reduce reduce) {
  AllReduce operation = all_reduce_of(tensor, reduce);
  wait(operation, "all_reduce");
}

std::shared_ptr<Handle> StagedGroup::start_all_reduce(at::Tensor& tensor, Reduce reduce) {
  return start(std::make_shared<AllReduce>(all_reduce_of(tensor, reduce)), "all_reduce");
}

template <class To, class From>
void StagedGroup::move_between_all(const char* name, To to, From from, int64_t bytes) {
  const auto messages = batch(name);
  for (int i = 1; i < size(); ++i) {
    const int k = (position() + size() - i) % size();
    messages->recv(to(k), bytes, k, kTagMove);
  }
  for (int i = 1; i < size(); ++i) {
    const int k = (position() + i) % size();
    messages->send(from(k), bytes, k, kTagMove);
  }
  wait(*messages, name);
}

void StagedGroup::gather_bytes(void* all, const void* one, int64_t bytes) {
  char* const to = static_cast<char*>(all);
  std::memcpy(to + position() * bytes, one, static_cast<size_t>(bytes));
  move_between_all(
      "all_gather", [&](int k) { return to + k * bytes; }, [&](int) { return one; }, bytes);
}

void StagedGroup::swap_bytes(void* out, const void* in, int64_t bytes) {
  char* const to = static_cast<char*>(out);
  const char* const from = static_cast<const char*>(in);
  std::memcpy(to + position() * bytes, from + position() * bytes, static_cast<size_t>(bytes));
  move_between_all(
      "all_to_all", [&](int k) { return to + k * bytes; }, [&](int k) { return from + k * bytes; },
      bytes);
}

void StagedGroup::do_all_gather(at::Tensor& all, const at::Tensor& one) {
  if (one.numel() == 0) return;
  gather_bytes(all.mutable_data_ptr(), one.const_data_ptr(), bytes_of(one));
  count((size() - 1) * bytes_of(one));
}

std::shared_ptr<Handle> StagedGroup::start_all_gather(at::Tensor& all, const at::Tensor& one) {
  if (one.numel() == 0) return nullptr;
  count((size() - 1) * bytes_of(one));
  return start(
      std::make_shared<AllGather>(batch("all_gather"), position(), size(), next_tag(), all, one),
      "all_gather");
}

void StagedGroup::do_reduce_scatter(at::Tensor& one, const at::Tensor& all) {
  if (one.numel() == 0) return;
  at::Tensor parts = at::empty_like(all);
  swap_bytes(parts.mutable_data_ptr(), all.const_data_ptr(), bytes_of(one));
  count((size() - 1) * bytes_of(one));
  const auto blocks = blocks_of(parts.const_data_ptr(), size(), bytes_of(one));
  reduce_in_order(one.mutable_data_ptr(), blocks.data(), size(), one.numel(), one.scalar_type(),
                  Reduce::sum);
}

void StagedGroup::do_all_to_all(at::Tensor& out, const at::Tensor& in) {
  if (in.numel() == 0) return;
  swap_bytes(out.mutable_data_ptr(), in.const_data_ptr(), bytes_of(in) / size());
  count(bytes_of(in) / size() * (size() - 1));
}

void StagedGroup::do_broadcast(at::Tensor& tensor, int root) {
  if (tensor.numel() == 0) return;
  broadcast_bytes(tensor.mutable_data_ptr(), bytes_of(tensor), root);
  if (position() == root) count((size() - 1) * bytes_of(tensor));
}

}  // namespace nns::comm
