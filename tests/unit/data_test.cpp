// Token files, characters, windows and prefetching.
#include <rapidcheck.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "data/prefetch.h"
#include "data/windows.h"

using namespace nns;
using namespace nns::data;
using Order = WindowsOptions::Order;
using Catch::Contains;

namespace {

struct TemporaryFile {
  std::string path;
  explicit TemporaryFile(const std::string& bytes)
      : path((std::filesystem::temp_directory_path() / fmt::format("nns_tokens_{}.bin", ::getpid()))
                 .string()) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
};

template <class T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string llm_header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> head(256);
  head[0] = magic, head[1] = version, head[2] = count;
  return packed(head);
}

std::shared_ptr<const Tokens> counting(int64_t n) {
  std::vector<uint16_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i);
  return std::make_shared<Tokens>("counting.bin", std::move(ids));
}

std::vector<int64_t> all(const Tokens& t) {
  std::vector<int64_t> out(static_cast<size_t>(t.size()));
  t.copy(0, t.size(), out.data());
  return out;
}

}  // namespace

TEST_CASE("token files of both kinds are read", "[data]") {
  {
    TemporaryFile f(packed<uint16_t>({3, 65535, 0}));
    const Tokens t = Tokens::open_file(f.path);
    CHECK(all(t) == std::vector<int64_t>{3, 65535, 0});
    CHECK(t.largest() == 65535);
  }
  {
    TemporaryFile f(llm_header(20240520, 1, 2) + packed<uint16_t>({7, 50256}));
    CHECK(all(Tokens::open_file(f.path)) == std::vector<int64_t>{7, 50256});
  }
  TemporaryFile f(llm_header(20240801, 7, 2) + packed<uint32_t>({7, 128255}));
  CHECK(all(Tokens::open_file(f.path)) == std::vector<int64_t>{7, 128255});
}

TEST_CASE("token files that cannot be right are refused", "[data]") {
  const auto refusal = [](const std::string& bytes) {
    TemporaryFile f(bytes);
    try {
      Tokens::open_file(f.path);
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("accepted");
  };
  CHECK_THAT(refusal(""), Contains("is empty; expected token ids"));
  CHECK_THAT(refusal("abc"), Contains("has 3 bytes; expected an even number"));
  CHECK_THAT(refusal(llm_header(20240520, 2, 0)), Contains("has version 2; expected 1"));
  CHECK_THAT(refusal(llm_header(20240520, 1, 9) + "abcd"),
             Contains("says 9 tokens; the file holds 2"));
  CHECK_THROWS_WITH(Tokens::open_file("/nowhere/x.bin"),
                    Contains("[data.tokens] cannot read '/nowhere/x.bin': No such file"));
  CHECK_THROWS_WITH(Tokens::open_file("/tmp"), Contains("it is a folder or device"));
}

TEST_CASE("characters are numbered by code point and come back", "[data]") {
  const std::string text = "b\na é€ab𝄞";
  const Characters c = Characters::of(text, "t");
  CHECK(c.list() == std::vector<std::string>{"\n", " ", "a", "b", "é", "€", "𝄞"});
  const auto ids = c.encode(text, "t");
  CHECK(ids == std::vector<uint16_t>{3, 0, 2, 1, 4, 5, 2, 3, 6});
  CHECK(c.decode({ids.begin(), ids.end()}) == text);
  CHECK(Characters(c.list()).encode(text, "t") == ids);
  CHECK_THROWS_WITH(
      c.encode("abz", "prompt"),
      Contains("the character 'z' at byte 2 of 'prompt' is not in the vocabulary of 7"));
  CHECK_THROWS_WITH(c.decode({7}), Contains("id 7 is outside the vocabulary of 7"));
  for (const std::string bad :
       {"a\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"})
    CHECK_THROWS_WITH(Characters::of(bad, "t"), Contains("is not UTF-8 text: byte"));
  CHECK_THROWS_WITH(Characters({"ab"}), Contains("'ab' is not one character"));
  CHECK_THROWS_WITH(Characters({"a", "a"}), Contains("stands twice"));
}

TEST_CASE("every kind of window stays inside its part and is a function of its number", "[data]") {
  rc::check([] {
    WindowsOptions o;
    const int64_t size = *rc::gen::inRange<int64_t>(10, 300);
    o.begin = *rc::gen::inRange<int64_t>(0, size - 8);
    o.stop = *rc::gen::inRange<int64_t>(o.begin + 8, size + 1);
    o.block = *rc::gen::inRange<int64_t>(1, 8);
    o.batch = *rc::gen::inRange<int64_t>(1, 5);
    o.order = *rc::gen::element(Order::random, Order::epoch, Order::pass);
    o.drop_last = false;
    o.seed = *rc::gen::arbitrary<uint64_t>();
    const auto tokens = counting(size);
    const Windows w(tokens, o);
    const int64_t count = w.per_epoch() > 0 ? w.per_epoch() : 20;
    std::multiset<int64_t> targets;
    for (int64_t n = 0; n < count; ++n) {
      const Batch b = w.batch(n);
      RC_ASSERT(static_cast<int64_t>(b.x.size()) == b.rows * b.block);
      for (size_t i = 0; i < b.x.size(); ++i) {
        RC_ASSERT(b.y[i] == b.x[i] + 1);
        RC_ASSERT(b.x[i] >= o.begin && b.y[i] < o.stop);
      }
      targets.insert(b.y.begin(), b.y.end());
      RC_ASSERT(Windows(tokens, o).starts(n) == w.starts(n));
    }
    // A pass has every target of its part once; an epoch all but those of the last, shorter window.
    const int64_t length = o.stop - o.begin;
    if (o.order == Order::pass) RC_ASSERT(targets.size() == static_cast<size_t>(length - 1));
    if (o.order == Order::epoch)
      RC_ASSERT(targets.size() == static_cast<size_t>((length - 1) / o.block * o.block));
    if (o.order != Order::random)
      RC_ASSERT(std::set<int64_t>(targets.begin(), targets.end()).size() == targets.size());
  });
}

TEST_CASE("epochs differ, seeds differ, and random starts fill their range evenly", "[data]") {
  const auto tokens = counting(4001);
  WindowsOptions o{0, 4001, 4, 100, Order::epoch, true, 1, 0};
  const Windows w(tokens, o);
  REQUIRE(w.per_epoch() == 10);
  CHECK(w.starts(0) != w.starts(10));
  WindowsOptions other = o;
  other.seed = 2;
  CHECK(w.starts(0) != Windows(tokens, other).starts(0));
  o.order = Order::random;
  o.stop = 14;  // ten possible starts
  const Windows random(tokens, o);
  std::vector<int> hits(10);
  for (int64_t n = 0; n < 100; ++n)
    for (const int64_t s : random.starts(n)) ++hits.at(static_cast<size_t>(s));
  double chi = 0;  // 9 degrees of freedom: above 27.9 once in a thousand
  for (const int h : hits) chi += (h - 1000.0) * (h - 1000.0) / 1000.0;
  CHECK(chi < 27.9);
}

TEST_CASE("windows that cannot be are refused with both numbers", "[data]") {
  const auto make = [](int64_t size, WindowsOptions o) { return Windows(counting(size), o); };
  WindowsOptions o{0, 64, 64, 12, Order::random, true, 0, 0};
  CHECK_THROWS_WITH(make(64, o), Contains("[data.windows] 'counting.bin' gives 64 tokens to train "
                                          "on; a block of 64 needs at least 65"));
  o.order = Order::pass, o.stop = 1;
  CHECK_THROWS_WITH(make(64, o),
                    Contains("gives 1 tokens to validate; a block of 64 needs at least 2"));
  o = {0, 64, 8, 12, Order::epoch, true, 0, 0};
  CHECK_THROWS_WITH(make(64, o), Contains("gives 7 windows of 8; a batch needs 12"));
  o.block = 0;
  CHECK_THROWS_WITH(make(64, o), Contains("block = 0; expected at least 1"));
  o.block = 8, o.batch = -1;
  CHECK_THROWS_WITH(make(64, o), Contains("batch = -1; expected at least 1"));
  o = {0, 64, 8, 2, Order::pass, true, 0, 60};
  const Windows w = make(64, o);
  CHECK(w.batch(0).rows == 2);
  CHECK_THROWS_WITH(
      w.batch(4),
      Contains("token 60 of 'counting.bin' is 60; expected below the vocabulary of 60"));
  CHECK_THROWS_WITH(w.batch(5), Contains("there is no micro-batch 5; expected 0 to 4"));
}

TEST_CASE("prefetching changes nothing but the time", "[data]") {
  rc::check([] {
    const int64_t stride = *rc::gen::inRange<int64_t>(1, 4);
    const auto depth = *rc::gen::inRange<size_t>(1, 5);
    Prefetcher<int64_t> p([](int64_t n) { return n * n; }, stride, depth);
    int64_t n = 0;
    for (const bool stay : *rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>())) {
      n = stay ? n + stride : *rc::gen::inRange<int64_t>(0, 50);
      RC_ASSERT(p.get(n) == n * n);
    }
  });
}

TEST_CASE("what fails ahead of time is thrown when it is asked for", "[data]") {
  Prefetcher<int> p(
      [](int64_t n) {
        if (n == 3) fail(ErrorKind::data, "[data.test] item {}", n);
        return static_cast<int>(n);
      },
      1, 4);
  for (int n = 0; n < 3; ++n) CHECK(p.get(n) == n);
  CHECK_THROWS_WITH(p.get(3), Contains("item 3"));
  CHECK(p.get(4) == 4);
  CHECK(p.get(2) == 2);
}
