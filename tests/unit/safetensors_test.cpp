// The safetensors format: round trips, slices against an element-by-element oracle, and every
// attack that has been published against readers of it.
#include "checkpoint/safetensors.h"

#include <rapidcheck.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checksum.h"

using namespace nns;
using namespace nns::safetensors;
namespace fs = std::filesystem;

namespace {

std::string with_header(const std::string& header, size_t data_bytes, int64_t claimed = -1) {
  const uint64_t n = claimed >= 0 ? static_cast<uint64_t>(claimed) : header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + std::string(data_bytes, '\1');
}

std::string refusal(const std::string& file) {
  try {
    parse(file, "x.safetensors", "checkpoint.read");
  } catch (const Error& e) {
    REQUIRE(e.kind() == ErrorKind::state);
    REQUIRE(e.message().rfind("[checkpoint.read] 'x.safetensors' is not a valid safetensors file: ",
                              0) == 0);
    return e.message();
  }
  return "accepted";
}

std::string one(const std::string& shape, const std::string& offsets,
                const std::string& dtype = "F32") {
  return "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

using Catch::Contains;

}  // namespace

TEST_CASE("a sound file is read", "[safetensors]") {
  const auto h = parse(with_header(one("[2,3]", "[0,24]") + "   ", 24), "x", "a");
  REQUIRE(h.entries.size() == 1);
  CHECK(to_string(h.entries[0].type) == "float32[2, 3]");
  CHECK(refusal(with_header("{}", 0)) == "accepted");
  CHECK(refusal(with_header(one("[]", "[0,8]", "I64"), 8)) == "accepted");
  CHECK(refusal(with_header(one("[0,5]", "[0,0]"), 0)) == "accepted");
}

TEST_CASE("attacks on the length of the header are refused", "[safetensors]") {
  CHECK_THAT(refusal(""), Contains("it has 0 bytes; expected at least 8"));
  CHECK_THAT(refusal(with_header("{}", 0, 1000)),
             Contains("its header claims 1000 bytes, the file has 10: it is truncated"));
  CHECK_THAT(refusal(with_header("{}", 0, INT64_MAX)), Contains("expected at most 100000000"));
  std::string all(16, '\xff');
  CHECK_THAT(refusal(all), Contains("its header claims 18446744073709551615 bytes"));
  CHECK_THAT(refusal(with_header("", 0)), Contains("does not start with '{'"));
  CHECK_THAT(refusal(with_header(" {}", 0)), Contains("does not start with '{'"));
}

TEST_CASE("attacks on the JSON are refused", "[safetensors]") {
  CHECK_THAT(refusal(with_header("{\"a\":", 0)), Contains("the header is not JSON"));
  CHECK_THAT(refusal(with_header("{\"a\xff\":1}", 0)), Contains("bad UTF-8"));
  CHECK_THAT(refusal(with_header(std::string("{}\0{}", 5), 0)), Contains("NUL byte"));
  CHECK_THAT(refusal(with_header("{} {}", 0)), Contains("not JSON"));
  CHECK_THAT(refusal(with_header("{\"a\":" + std::string(90000, '['), 0)),
             Contains("tensor 'a' is a list"));
  CHECK_THAT(refusal(with_header("{\"a\":1}", 0)),
             Contains("tensor 'a' is a number; expected an object"));
  CHECK_THAT(refusal(with_header("{\"a\":{}}", 0)),
             Contains("tensor 'a' lacks dtype, shape or two data_offsets"));
  CHECK_THAT(refusal(with_header("{\"__metadata__\":{\"k\":1}}", 0)),
             Contains("__metadata__['k'] is a number; expected a string"));
  CHECK_THAT(refusal(with_header("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0)),
             Contains("stands twice in __metadata__"));
  const std::string item = "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  CHECK_THAT(refusal(with_header("{" + item + "," + item + "}", 0)),
             Contains("the key 'a' stands twice in the header"));
  CHECK_THAT(refusal(with_header("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0)),
             Contains("the key 'dtype' stands twice"));
  CHECK_THAT(refusal(with_header("{\"a\":{\"shape\":[],\"shape\":[]}}", 0)),
             Contains("the key 'shape' stands twice"));
  CHECK_THAT(refusal(with_header("{\"a\":{\"pickle\":\"x\"}}", 0)),
             Contains("unknown key 'pickle'"));
}

TEST_CASE("attacks on types and ranges are refused", "[safetensors]") {
  CHECK_THAT(refusal(with_header(one("[1]", "[0,4]", "F33"), 4)),
             Contains("has dtype 'F33'; expected one of F64, F32"));
  CHECK_THAT(refusal(with_header(one("[2]", "[0,4]"), 4)),
             Contains("data_offsets [0, 4] do not hold float32[2] of 8 bytes"));
  CHECK_THAT(refusal(with_header(one("[1]", "[4,0]"), 4)), Contains("do not hold"));
  CHECK_THAT(refusal(with_header(one("[1]", "[0,4,8]"), 4)), Contains("more than two numbers"));
  CHECK_THAT(refusal(with_header(one("[1]", "[18446744073709551612,18446744073709551616]"), 4)),
             Contains("unexpected the number 18446744073709551616"));
  CHECK_THAT(refusal(with_header(one("[1]", "[18446744073709551611,18446744073709551615]"), 4)),
             Contains("is truncated"));
  CHECK_THAT(refusal(with_header(one("[-1]", "[0,4]"), 4)), Contains("a negative number"));
  CHECK_THAT(refusal(with_header(one("[1.0]", "[0,4]"), 4)), Contains("the number 1.0"));
  CHECK_THAT(refusal(with_header(one("[4294967296,4294967296]", "[0,0]"), 0)),
             Contains("more elements than fit in 64 bits"));
  CHECK_THAT(refusal(with_header(one("[0,9223372036854775807]", "[0,0]"), 0)),
             Contains("more elements than fit"));
  CHECK_THAT(refusal(with_header(one("[9223372036854775808]", "[0,0]", "U8"), 0)),
             Contains("more elements than fit"));
  CHECK_THAT(refusal(with_header(one("[1]", "[0,4]"), 3)),
             Contains("tensor 'a' ends at byte 4 of 3 bytes of data: the file is truncated"));
  CHECK_THAT(refusal(with_header(one("[1]", "[0,4]"), 6)), Contains("2 trailing bytes"));
  CHECK_THAT(refusal(with_header(one("[1]", "[4,8]"), 8)),
             Contains("a hole of 4 bytes before tensor 'a'"));
  const std::string overlap =
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}";
  CHECK_THAT(refusal(with_header(overlap, 6)), Contains("tensors 'a' and 'b' overlap"));
}

TEST_CASE("a mutated file is refused or stays inside its bytes", "[safetensors]") {
  std::vector<float> data(12);
  std::iota(data.begin(), data.end(), 0.f);
  std::vector<Item> items = {{"w.0", {{3, 2}, DType::f32}, data.data()},
                             {"b", {{5}, DType::u8}, data.data()},
                             {"s", {{}, DType::f64}, data.data()}};
  std::string sound = make_header(items, {{"format", "pt"}});
  sound += std::string(24 + 5 + 8, '\2');
  REQUIRE(refusal(sound) == "accepted");
  rc::check([&] {
    std::string bytes = sound;
    const int changes = *rc::gen::inRange(1, 6);
    for (int i = 0; i < changes && !bytes.empty(); ++i) {
      const auto at = *rc::gen::inRange<size_t>(0, bytes.size());
      switch (*rc::gen::inRange(0, 5)) {
        case 0:
          bytes.resize(at);
          break;
        case 1:
          bytes.erase(at, 1);
          break;
        case 2:
          bytes.insert(at, 1, static_cast<char>(*rc::gen::inRange(0, 256)));
          break;
        case 3:
          bytes[at] = *rc::gen::elementOf(std::string("0123456789[]{}\",:-eE "));
          break;
        default:
          bytes[at] = static_cast<char>(*rc::gen::inRange(0, 256));
      }
    }
    try {
      const Header h = parse(bytes, "x", "a");
      for (const Entry& e : h.entries) {
        RC_ASSERT(h.data_offset + e.end <= bytes.size());
        RC_ASSERT(static_cast<int64_t>(e.end - e.begin) == bytes_of(e.type));
      }
    } catch (const Error& e) {
      RC_ASSERT(e.kind() == ErrorKind::state);
    }
  });
}

TEST_CASE("what is written is read back, whatever the order of the list", "[safetensors]") {
  const std::string path =
      (fs::temp_directory_path() / fmt::format("nns_st_{}.safetensors", ::getpid())).string();
  rc::check([&] {
    const auto count = *rc::gen::inRange(0, 6);
    std::vector<std::string> storage;
    std::vector<Item> items;
    for (int i = 0; i < count; ++i) {
      const auto dtype =
          *rc::gen::element(DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                            DType::i16, DType::i8, DType::u8, DType::boolean, DType::c64);
      const auto shape = *rc::gen::container<Shape>(rc::gen::inRange<int64_t>(0, 4));
      if (shape.size() > 6) continue;
      TensorType type{shape, dtype};
      storage.push_back(*rc::gen::container<std::string>(static_cast<size_t>(bytes_of(type)),
                                                         rc::gen::arbitrary<char>()));
      items.push_back({fmt::format("\"t\\{}é", i), type, nullptr});
    }
    for (size_t i = 0; i < items.size(); ++i) items[i].data = storage[i].data();
    const std::vector<Item> original = items;
    write(path, items, {{"k\n", "v"}});
    const std::string first = read_file(path, "test");
    std::reverse(items.begin(), items.end());
    write(path, items, {{"k\n", "v"}});
    RC_ASSERT(read_file(path, "test") == first);
    const auto file = File::open(path);
    RC_ASSERT(file->entries().size() == original.size());
    RC_ASSERT(file->metadata().at("k\n") == "v");
    for (size_t i = 0; i < original.size(); ++i) {
      const Entry& e = file->at(original[i].name);
      RC_ASSERT(e.type == original[i].type);
      RC_ASSERT(file->bytes(e) == storage[i]);
      const auto at = reinterpret_cast<uintptr_t>(file->bytes(e).data());
      RC_ASSERT(at % static_cast<uintptr_t>(size_of(e.type.dtype)) == 0);
    }
  });
  fs::remove(path);
}

TEST_CASE("a slice holds the elements that indexing gives", "[safetensors]") {
  rc::check([] {
    Shape shape = *rc::gen::container<Shape>(rc::gen::inRange<int64_t>(0, 5));
    if (shape.size() > 5) shape.resize(5);
    std::vector<int32_t> data(static_cast<size_t>(numel(shape)));
    std::iota(data.begin(), data.end(), 0);
    std::vector<Range> slice;
    int64_t n = 1;
    for (const int64_t extent : shape) {
      const auto start = *rc::gen::inRange<int64_t>(0, extent + 1);
      const auto stop = *rc::gen::inRange<int64_t>(start, extent + 1);
      slice.push_back({start, stop});
      n *= stop - start;
    }
    std::vector<int32_t> out(static_cast<size_t>(n) + 1, -7);
    copy_slice({reinterpret_cast<const char*>(data.data()), data.size() * 4}, {shape, DType::i32},
               slice, reinterpret_cast<char*>(out.data()));
    for (int64_t flat = 0; flat < n; ++flat) {
      int64_t rest = flat, source = 0, stride = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        const int64_t width = slice[d].stop - slice[d].start;
        source += (slice[d].start + rest % width) * stride;
        rest /= width;
        stride *= shape[d];
      }
      RC_ASSERT(out[static_cast<size_t>(flat)] == source);
    }
    RC_ASSERT(out.back() == -7);
  });
  char out[4];
  CHECK_THROWS_WITH(copy_slice("abcd", {{4}, DType::u8}, {{2, 5}}, out),
                    Contains("range [2, 5) leaves dimension 0 of uint8[4]"));
  CHECK_THROWS_WITH(copy_slice("abcd", {{4}, DType::u8}, {}, out),
                    Contains("0 ranges for a tensor uint8[4]; expected 1"));
}

TEST_CASE("what the format cannot hold is not written", "[safetensors]") {
  const auto header = [](std::vector<Item> items) { return make_header(items, {}); };
  CHECK_THROWS_WITH(header({{"a", {{}, DType::c128}, nullptr}}),
                    Contains("tensor 'a' is complex128, which the format does not know"));
  CHECK_THROWS_WITH(header({{"a", {{}, DType::u8}, nullptr}, {"a", {{}, DType::i8}, nullptr}}),
                    Contains("the name 'a' is taken"));
  CHECK_THROWS_WITH(header({{"__metadata__", {{}, DType::u8}, nullptr}}), Contains("is taken"));
  CHECK_THROWS_WITH(header({{"\xff", {{}, DType::u8}, nullptr}}), Contains("not UTF-8"));
  CHECK_THROWS_WITH(
      write("/nowhere/x.safetensors", {}, {}),
      Contains("[checkpoint.write] cannot write '/nowhere/x.safetensors': No such file"));
  CHECK_THROWS_WITH(File::open("/nowhere/x"),
                    Contains("[checkpoint.read] cannot read '/nowhere/x': No such file"));
}

TEST_CASE("the checksum is XXH64", "[safetensors]") {
  using checkpoint::checksum;
  CHECK(hex(checksum("")) == "ef46db3751d8e999");
  CHECK(hex(checksum("a")) == "d24ec4f1a98c6e5b");
  CHECK(hex(checksum("abc")) == "44bc2cf5ad770999");
  CHECK(hex(checksum("Nobody inspects the spammish repetition")) == "fbcea83c8a378bf1");
}
