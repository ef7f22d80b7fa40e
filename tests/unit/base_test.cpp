#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/types.h"

using namespace nns;

TEST_CASE("dtype promotion follows PyTorch") {
  CHECK(promote(DType::f16, DType::bf16) == DType::f32);
  CHECK(promote(DType::u8, DType::i8) == DType::i16);
  CHECK(promote(DType::i64, DType::f16) == DType::f16);
  CHECK(promote(DType::boolean, DType::u8) == DType::u8);
  CHECK(promote(DType::c64, DType::f64) == DType::c128);
}

TEST_CASE("an error carries its hint in what()") {
  const Error e(ErrorKind::usage, "[a.b] wrong: 3", "use 4");
  CHECK(std::string(e.what()) == "[a.b] wrong: 3\nhint: use 4");
  CHECK(e.exit_code() == 2);
}
