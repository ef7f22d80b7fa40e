// Cutting, padding and joining around the backends' equal-sized collectives.
#include "comm/group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <fmt/ranges.h>

#include "base/error.h"
#include "launch/slot.h"
#include "lower/layout.h"
#include "lower/traffic.h"

namespace nns::comm {
namespace {

using lower::part_of;
using lower::Range;

Range part(int64_t whole, int index, int parts) {
  return part_of({0, whole}, index, parts);
}

// `tensor` with zeros behind it along `dim` up to `length`.
at::Tensor padded(const at::Tensor& tensor, int64_t dim, int64_t length) {
  const int64_t missing = length - tensor.size(dim);
  if (missing == 0) return tensor;
  auto sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(dim)] = missing;
  return at::cat({tensor, at::zeros(sizes, tensor.options())}, dim);
}

// Part k of n along `dim`, padded to the longest part, stacked in front: [n, …].
at::Tensor cut(const at::Tensor& tensor, int64_t dim, int n) {
  const int64_t whole = tensor.size(dim), longest = part(whole, 0, n).length();
  if (dim == 0 && whole % n == 0) {
    auto sizes = tensor.sizes().vec();
    sizes[0] = longest;
    sizes.insert(sizes.begin(), n);
    return tensor.contiguous().view(sizes);
  }
  std::vector<at::Tensor> parts;
  for (int k = 0; k < n; ++k) {
    const Range r = part(whole, k, n);
    parts.push_back(padded(tensor.narrow(dim, r.start, r.length()), dim, longest));
  }
  return at::stack(parts);
}

// Undoes `cut`: joins all[k] along `dim` to length `whole`.
at::Tensor join(const at::Tensor& all, int64_t dim, int64_t whole, int n) {
  if (dim == 0 && whole % n == 0) {
    auto sizes = all.sizes().slice(1).vec();
    sizes[0] = whole;
    return all.view(sizes);
  }
  std::vector<at::Tensor> parts;
  for (int k = 0; k < n; ++k) parts.push_back(all[k].narrow(dim, 0, part(whole, k, n).length()));
  return at::cat(parts, dim);
}

std::vector<int64_t> with_front(int n, const at::Tensor& tensor) {
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), n);
  return sizes;
}

// Writes a dense copy back into the tensor it was made of.
class CopyBack : public Handle {
 public:
  CopyBack(std::shared_ptr<Handle> inner, at::Tensor to, at::Tensor from)
      : inner_(std::move(inner)), to_(std::move(to)), from_(std::move(from)) {}

  bool done() override {
    if (inner_ && !inner_->done()) return false;
    finish();
    return true;
  }
  void wait() override {
    if (inner_) inner_->wait();
    finish();
  }

 private:
  void finish() {
    if (from_.defined()) to_.copy_(from_);
    inner_.reset();
    // The handle may live on for long: the collector does not see what it holds.
    from_.reset();
    to_.reset();
  }
  std::shared_ptr<Handle> inner_;
  at::Tensor to_, from_;
};

}  // namespace

Group::Group(std::vector<int> ranks, int position)
    : ranks_(std::move(ranks)),
      position_(position),
      note_(launch::note_group(fmt::format("{}", fmt::join(ranks_, ",")))) {}

void Group::count_reduced(const at::Tensor& tensor) {
  count(lower::sent_by_all_reduce(tensor.numel(), size(), position()) *
        static_cast<int64_t>(tensor.element_size()));
}

std::string Group::call_text(const char* operation, const at::Tensor& like) {
  if (!like.defined()) return fmt::format("{} #{}", operation, calls_++);
  return fmt::format("{} {} [{}] #{}", operation, c10::toString(like.scalar_type()),
                     fmt::join(like.sizes(), ", "), calls_++);
}

void Group::compare_calls(const char* operation, const std::vector<std::string>& calls) const {
  const auto& mine = calls[static_cast<size_t>(position_)];
  for (size_t k = 0; k < calls.size(); ++k)
    if (calls[k] != mine)
      fail(ErrorKind::communication,
           "[comm.{}] the ranks of group {} disagree: rank {} calls {}, rank {} calls {}",
           operation, fmt::join(ranks_, ","), ranks_[static_cast<size_t>(position_)], mine,
           ranks_[k], calls[k]);
}

void Group::check(const char* operation, const at::Tensor& like) {
  if (!checked_ || compares()) return;
  compare_calls(operation, exchange(call_text(operation, like)));
}

std::shared_ptr<Handle> Group::all_reduce_async(at::Tensor& tensor, Reduce reduce) {
  if (size() == 1) return std::make_shared<CopyBack>(nullptr, tensor, at::Tensor());
  check("all_reduce", tensor);
  at::Tensor dense = tensor.contiguous();
  auto inner = start_all_reduce(dense, reduce);
  return std::make_shared<CopyBack>(std::move(inner), tensor,
                                    dense.is_same(tensor) ? at::Tensor() : dense);
}

void Group::all_reduce(at::Tensor& tensor, Reduce reduce) {
  if (size() == 1) return;
  check("all_reduce", tensor);
  if (tensor.is_contiguous()) return do_all_reduce(tensor, reduce);
  at::Tensor dense = tensor.contiguous();
  do_all_reduce(dense, reduce);
  tensor.copy_(dense);
}

at::Tensor Group::all_gather(const at::Tensor& local, int64_t dim, int64_t whole) {
  if (size() == 1) return local;
  if (const auto begun = ahead_.find(local.unsafeGetTensorImpl()); begun != ahead_.end()) {
    const Ahead ahead = std::move(begun->second);
    ahead_.erase(begun);
    if (ahead.handle) ahead.handle->wait();
    return join(ahead.all, dim, whole, size());
  }
  const at::Tensor one = padded(local, dim, part(whole, 0, size()).length()).contiguous();
  check("all_gather", one);
  at::Tensor all = at::empty(with_front(size(), one), one.options());
  do_all_gather(all, one);
  return join(all, dim, whole, size());
}

void Group::all_gather_ahead(const at::Tensor& local, int64_t dim, int64_t whole) {
  if (size() == 1 || ahead_.contains(local.unsafeGetTensorImpl())) return;
  const at::Tensor one = padded(local, dim, part(whole, 0, size()).length()).contiguous();
  check("all_gather", one);
  at::Tensor all = at::empty(with_front(size(), one), one.options());
  auto handle = start_all_gather(all, one);
  ahead_.emplace(local.unsafeGetTensorImpl(), Ahead{local, std::move(all), std::move(handle)});
}

at::Tensor Group::reduce_scatter(const at::Tensor& addend, int64_t dim) {
  if (size() == 1) return addend;
  check("reduce_scatter", addend);
  const at::Tensor all = cut(addend, dim, size());
  at::Tensor one = at::empty(all.sizes().slice(1), all.options());
  do_reduce_scatter(one, all);
  return one.narrow(dim, 0, part(addend.size(dim), position(), size()).length());
}

std::vector<at::Tensor> Group::reduce_scatter(const std::vector<at::Tensor>& addends,
                                              const std::vector<int64_t>& dims, bool empty) {
  NNS_CHECK(!addends.empty() && addends.size() == dims.size(), "{} addends along {} dimensions",
            addends.size(), dims.size());
  // Parts of a rank, one behind the other; f(addend, start, length, first element, elements).
  const auto each = [&](int rank, const auto& f) {
    int64_t first = 0;
    for (size_t i = 0; i < addends.size(); ++i) {
      const int64_t length = addends[i].size(dims[i]);
      const lower::Range range = part(length, rank, size());
      const int64_t elements = length == 0 ? 0 : addends[i].numel() / length * range.length();
      f(i, range, first, elements);
      first += elements;
    }
    return first;
  };
  const auto nothing = [](size_t, const lower::Range&, int64_t, int64_t) {};
  int64_t longest = 0;
  for (int k = 0; k < size(); ++k) longest = std::max(longest, each(k, nothing));
  at::Tensor all = at::empty({size(), longest}, addends[0].options());
  if (empty) all.zero_();
  for (int k = 0; k < size() && !empty; ++k) {
    const at::Tensor line = all[k];
    const int64_t end =
        each(k, [&](size_t i, const lower::Range& range, int64_t first, int64_t elements) {
          const at::Tensor piece = addends[i].narrow(dims[i], range.start, range.length());
          line.narrow(0, first, elements).view(piece.sizes()).copy_(piece);
        });
    if (end < longest) line.narrow(0, end, longest - end).zero_();
  }
  check("reduce_scatter", all);
  at::Tensor one = at::empty({longest}, all.options());
  if (size() == 1)
    one.copy_(all[0]);
  else
    do_reduce_scatter(one, all);
  const int64_t own = each(position(), nothing);
  if (own < longest) one = one.narrow(0, 0, own).clone();
  std::vector<at::Tensor> out;
  each(position(), [&](size_t i, const lower::Range& range, int64_t first, int64_t elements) {
    auto sizes = addends[i].sizes().vec();
    sizes[static_cast<size_t>(dims[i])] = range.length();
    out.push_back(one.narrow(0, first, elements).view(sizes));
  });
  return out;
}

at::Tensor Group::all_to_all(const at::Tensor& local, int64_t dim, int64_t from, int64_t whole) {
  if (size() == 1) return local;
  // Parts of `dim` go out; what comes in are the ranks' parts of `from`, padded alike.
  const at::Tensor in =
      cut(padded(local, from, part(whole, 0, size()).length()), dim, size()).contiguous();
  check("all_to_all", in);
  at::Tensor out = at::empty(in.sizes(), in.options());
  do_all_to_all(out, in);
  const int64_t mine = part(local.size(dim), position(), size()).length();
  return join(out, from, whole, size()).narrow(dim, 0, mine);
}

void Group::broadcast(at::Tensor& tensor, int root) {
  if (size() == 1) return;
  check("broadcast", tensor);
  if (tensor.is_contiguous()) return do_broadcast(tensor, root);
  at::Tensor dense = tensor.contiguous();
  do_broadcast(dense, root);
  tensor.copy_(dense);
}

}  // namespace nns::comm
