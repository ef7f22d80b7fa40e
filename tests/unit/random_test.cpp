#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include <set>

#include "ops/philox.h"
#include "ops/slice.h"
#include "ops/words.h"

using namespace nns;
using namespace nns::ops;

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  CHECK(philox({0, 0, 0, 0}, 0, 0) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr uint32_t f = 0xffffffff;
  CHECK(philox({f, f, f, f}, f, f) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams differ in key, seed, step and micro-batch") {
  std::set<uint64_t> seen;
  for (const char* key : {"", "a", "b", "h.0:dropout#0", "h.0:dropout#1"})
    for (uint64_t seed : {0ull, 1ull, 9007199254740991ull})
      for (uint64_t step : {0ull, 1ull})
        for (uint64_t micro : {0ull, 1ull})
          seen.insert(word64(make_stream(key, seed, step, micro), 0));
  CHECK(seen.size() == 5 * 3 * 2 * 2);
}

TEST_CASE("every element of a tile has a word of its own") {
  const Stream s = make_stream("x", 1);
  std::set<uint32_t> words;
  for (uint64_t e = 0; e < 4 * kTile; ++e) words.insert(word(s, e));
  CHECK(words.size() == 4 * kTile);
}

TEST_CASE("draws have the moments of their distributions") {
  const Stream s = make_stream("moments", 7);
  constexpr int n = 200000;
  double u1 = 0, u2 = 0, z1 = 0, z2 = 0, z4 = 0, lag = 0, last = 0;
  for (int e = 0; e < n; ++e) {
    const double u = uniform(s, static_cast<uint64_t>(e)), z = normal(s, static_cast<uint64_t>(e));
    u1 += u, u2 += u * u, z1 += z, z2 += z * z, z4 += z * z * z * z;
    lag += z * last, last = z;
  }
  // Six standard errors of each estimate.
  const double root = 6 / std::sqrt(double{n});
  CHECK(std::abs(u1 / n - 0.5) < root * 0.289);
  CHECK(std::abs(u2 / n - 1.0 / 3) < root * 0.299);
  CHECK(std::abs(z1 / n) < root);
  CHECK(std::abs(z2 / n - 1) < root * std::sqrt(2.0));
  CHECK(std::abs(z4 / n - 3) < root * std::sqrt(96.0));
  CHECK(std::abs(lag / n) < root);
}

TEST_CASE("the normal quantile inverts the distribution function") {
  for (double z = -6; z <= 6; z += 0.03125) {
    const double q = 0.5 * std::erfc(-z / std::sqrt(2.0));
    // Near q = 1 the spacing of doubles is what limits the answer.
    const double spacing = 4e-16 / std::max(1e-300, std::exp(-0.5 * z * z) / std::sqrt(2 * M_PI));
    CHECK(std::abs(normal_quantile(q) - z) < 1e-13 + (z > 0 ? spacing : 0));
  }
}

TEST_CASE("words drawn in bulk are the words drawn one by one") {
  CHECK(rc::check([] {
    const Stream s = make_stream("bulk", *rc::gen::arbitrary<uint32_t>(), 3, 4);
    // Beyond 2^38 the block index needs its high word.
    const auto far = *rc::gen::element<uint64_t>(0, (uint64_t{1} << 34) - 100, uint64_t{1} << 40);
    const auto first = far + *rc::gen::inRange<uint64_t>(0, 200);
    const auto count = *rc::gen::inRange<int64_t>(0, 300);
    std::vector<uint32_t> words(static_cast<size_t>(count) + 1, 7);
    draw_words(s, first, count, words.data());
    for (int64_t i = 0; i < count; ++i)
      RC_ASSERT(words[static_cast<size_t>(i)] == word(s, first + static_cast<uint64_t>(i)));
    RC_ASSERT(words.back() == 7u);
  }));
}

TEST_CASE("below is even over its range") {
  const Stream s = make_stream("below", 7);
  std::vector<int> counts(7);
  for (uint64_t e = 0; e < 70000; ++e) ++counts.at(below(s, e, 7));
  for (int c : counts) CHECK(std::abs(c - 10000) < 600);
}

TEST_CASE("permute is a permutation of every size") {
  CHECK(rc::check([] {
    const auto size = *rc::gen::inRange<uint64_t>(1, 3000);
    const Stream s = make_stream("p", *rc::gen::arbitrary<uint32_t>());
    std::vector<bool> hit(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t at = permute(s, i, size);
      RC_ASSERT(at < size);
      RC_ASSERT(!hit[at]);
      hit[at] = true;
    }
  }));
}

TEST_CASE("permute sends every index everywhere") {
  int counts[5][5] = {};
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    const Stream s = make_stream("p", seed);
    for (uint64_t i = 0; i < 5; ++i) ++counts[i][permute(s, i, 5)];
  }
  for (const auto& row : counts)
    for (int c : row) CHECK(std::abs(c - 1000) < 170);
}

TEST_CASE("the runs of a slice are its elements in the unsplit tensor") {
  CHECK(rc::check([] {
    const auto rank = *rc::gen::inRange<size_t>(0, 5);
    Shape full, offset, shape;
    for (size_t d = 0; d < rank; ++d) {
      full.push_back(*rc::gen::inRange<int64_t>(1, 6));
      offset.push_back(*rc::gen::inRange<int64_t>(0, full[d]));
      shape.push_back(*rc::gen::inRange<int64_t>(0, full[d] - offset[d] + 1));
    }
    const Slice slice(shape, offset, full);
    const int64_t n = numel(shape);
    RC_ASSERT(slice.numel_local() == n);
    const auto begin = *rc::gen::inRange<int64_t>(0, n + 1), end = *rc::gen::inRange(begin, n + 1);
    std::vector<int64_t> expected, got;
    for (int64_t i = begin; i < end; ++i) {
      int64_t at = 0, rest = i, stride = 1;
      for (size_t d = rank; d-- > 0;) {
        at += (offset[d] + rest % shape[d]) * stride;
        rest /= shape[d];
        stride *= full[d];
      }
      expected.push_back(at);
    }
    int64_t next = begin;
    slice.for_each_run(begin, end, [&](int64_t local, int64_t at, int64_t count) {
      RC_ASSERT(local == next);
      next += count;
      for (int64_t j = 0; j < count; ++j) got.push_back(at + j);
    });
    RC_ASSERT(got == expected);
  }));
}

TEST_CASE("a slice outside its tensor is refused with both shapes") {
  CHECK_THROWS_WITH(
      Slice({2, 3}, {1, 0}, {2, 3}),
      "[ops.slice] a slice of shape [2, 3] at [1, 0] is not inside a tensor of [2, 3]");
}
