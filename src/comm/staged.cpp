#include "comm/staged.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace nns::comm {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// Addresses of n blocks of `bytes` that lie one behind the other.
std::vector<const void*> blocks_of(const void* data, int n, int64_t bytes) {
  std::vector<const void*> blocks;
  for (int k = 0; k < n; ++k) blocks.push_back(static_cast<const char*>(data) + k * bytes);
  return blocks;
}

}  // namespace

void StagedGroup::send(const at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return;
  send_bytes(tensor.contiguous().clone(), peer, tag);
  count(bytes_of(tensor));
}

void StagedGroup::recv(at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return;
  at::Tensor dense = tensor.contiguous();
  recv_bytes(dense.mutable_data_ptr(), bytes_of(dense), peer, tag);
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

void StagedGroup::do_all_reduce(at::Tensor& tensor, Reduce reduce) {
  const int n = size();
  const int64_t elements = tensor.numel(), width = static_cast<int64_t>(tensor.element_size());
  if (elements == 0) return;
  const auto type = tensor.scalar_type();
  if (n == 2 && elements * width <= kDirectBytes) {
    at::Tensor all = at::empty({n * elements}, tensor.options());
    gather_bytes(all.mutable_data_ptr(), tensor.const_data_ptr(), elements * width);
    count_reduced(tensor);
    const auto blocks = blocks_of(all.const_data_ptr(), n, elements * width);
    reduce_in_order(tensor.mutable_data_ptr(), blocks.data(), n, elements, type, reduce);
    return;
  }
  // Each rank reduces one chunk of all, then gives it to the others: the traffic of a ring.
  const int64_t chunk = (elements + n - 1) / n;
  at::Tensor mine = at::empty({n * chunk}, tensor.options());
  char* const data = static_cast<char*>(mine.mutable_data_ptr());
  std::memcpy(data, tensor.const_data_ptr(), static_cast<size_t>(elements * width));
  std::memset(data + elements * width, 0, static_cast<size_t>((n * chunk - elements) * width));
  at::Tensor parts = at::empty({n * chunk}, tensor.options());
  swap_bytes(parts.mutable_data_ptr(), data, chunk * width);
  const auto blocks = blocks_of(parts.const_data_ptr(), n, chunk * width);
  reduce_in_order(parts.mutable_data_ptr(), blocks.data(), n, chunk, type, reduce);
  gather_bytes(data, parts.const_data_ptr(), chunk * width);
  count_reduced(tensor);
  std::memcpy(tensor.mutable_data_ptr(), data, static_cast<size_t>(elements * width));
}

void StagedGroup::do_all_gather(at::Tensor& all, const at::Tensor& one) {
  if (one.numel() == 0) return;
  gather_bytes(all.mutable_data_ptr(), one.const_data_ptr(), bytes_of(one));
  count((size() - 1) * bytes_of(one));
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
