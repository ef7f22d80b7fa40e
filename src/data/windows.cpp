#include "data/windows.h"

#include "base/error.h"
#include "ops/philox.h"

namespace nns::data {

using Order = WindowsOptions::Order;

Windows::Windows(std::shared_ptr<const Tokens> tokens, WindowsOptions options)
    : tokens_(std::move(tokens)), options_(options) {
  const auto& o = options_;
  if (o.block < 1)
    fail(ErrorKind::usage, "[data.windows] block = {}; expected at least 1", o.block);
  if (o.batch < 1)
    fail(ErrorKind::usage, "[data.windows] batch = {}; expected at least 1", o.batch);
  NNS_CHECK(o.begin >= 0 && o.begin <= o.stop && o.stop <= tokens_->size(),
            "windows [{}, {}) of {}", o.begin, o.stop, tokens_->size());
  // A window needs one token more than its block: the last target.
  const int64_t length = o.stop - o.begin;
  const int64_t least = o.order == Order::pass ? 2 : o.block + 1;
  if (length < least)
    throw Error(ErrorKind::data,
                fmt::format("[data.windows] '{}' gives {} tokens to {}; a block of {} needs at "
                            "least {}",
                            tokens_->path(), length,
                            o.order == Order::pass ? "validate" : "train on", o.block, least),
                "take a longer text, a smaller block or another share for validation");
  whole_ = (length - 1) / o.block;
  remainder_ = o.order == Order::pass ? (length - 1) % o.block : 0;
  if (o.order == Order::random) return;
  per_epoch_ =
      o.order == Order::epoch && o.drop_last ? whole_ / o.batch : (whole_ + o.batch - 1) / o.batch;
  if (remainder_ > 0) ++per_epoch_;
  if (per_epoch_ == 0)
    throw Error(ErrorKind::data,
                fmt::format("[data.windows] '{}' gives {} windows of {}; a batch needs {}",
                            tokens_->path(), whole_, o.block, o.batch),
                "take a smaller batch, or drop_last = false");
}

std::vector<int64_t> Windows::starts(int64_t n) const {
  const auto& o = options_;
  if (n < 0 || (o.order == Order::pass && n >= per_epoch_))
    fail(ErrorKind::data, "[data.windows] there is no micro-batch {}; expected 0 to {}", n,
         per_epoch_ - 1);
  std::vector<int64_t> out;
  if (o.order == Order::random) {
    const auto stream = ops::make_stream("data:random", o.seed);
    const auto choices = static_cast<uint64_t>(o.stop - o.begin - o.block);
    for (int64_t i = 0; i < o.batch; ++i)
      out.push_back(o.begin + static_cast<int64_t>(ops::below(
                                  stream, static_cast<uint64_t>(n * o.batch + i), choices)));
    return out;
  }
  const int64_t epoch = n / per_epoch_, first = n % per_epoch_ * o.batch;
  if (remainder_ > 0 && n == per_epoch_ - 1) return {o.begin + whole_ * o.block};
  const auto stream = ops::make_stream("data:epoch", o.seed, static_cast<uint64_t>(epoch));
  for (int64_t i = first; i < first + o.batch && i < whole_; ++i) {
    const int64_t at = o.order == Order::pass
                           ? i
                           : static_cast<int64_t>(ops::permute(stream, static_cast<uint64_t>(i),
                                                               static_cast<uint64_t>(whole_)));
    out.push_back(o.begin + at * o.block);
  }
  return out;
}

Batch Windows::batch(int64_t n) const {
  const auto& o = options_;
  const std::vector<int64_t> at = starts(n);
  Batch out;
  out.rows = static_cast<int64_t>(at.size());
  out.block = remainder_ > 0 && n == per_epoch_ - 1 ? remainder_ : o.block;
  out.x.reserve(static_cast<size_t>(out.rows * out.block));
  out.y.reserve(static_cast<size_t>(out.rows * out.block));
  std::vector<int64_t> window(static_cast<size_t>(out.block) + 1);
  for (const int64_t start : at) {
    tokens_->copy(start, out.block + 1, window.data());
    for (size_t i = 0; o.vocab > 0 && i < window.size(); ++i)
      if (window[i] >= o.vocab)
        throw Error(
            ErrorKind::data,
            fmt::format("[data.windows] token {} of '{}' is {}; expected below the "
                        "vocabulary of {}",
                        start + static_cast<int64_t>(i), tokens_->path(), window[i], o.vocab),
            "give the vocabulary that the file was written with");
    out.x.insert(out.x.end(), window.begin(), window.end() - 1);
    out.y.insert(out.y.end(), window.begin() + 1, window.end());
  }
  return out;
}

}  // namespace nns::data
