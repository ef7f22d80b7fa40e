// The operator table: inferred types against shapes known by hand, promotion, errors, annotations.
#include <catch2/catch.hpp>
#include <map>

#include "annotate/grammar.h"
#include "base/error.h"
#include "call.h"
#include "operators/record.h"
#include "operators/split.h"

using namespace nns;
using namespace nns::annotate;
using namespace nns::operators;
using Catch::Contains;
using graph::ValueRef;
using tests::Call;
using Ints = std::vector<int64_t>;

TEST_CASE("promotion ranks tensors with dims before 0-dim ones before numbers") {
  const TensorType i64{{2}, DType::i64}, f16{{2}, DType::f16}, f64_0{{}, DType::f64},
      i64_0{{}, DType::i64}, b{{2}, DType::boolean}, f32_0{{}, DType::f32}, c64_0{{}, DType::c64},
      f64{{2}, DType::f64}, u8{{2}, DType::u8};
  const auto tensor = [](const TensorType& t) { return Operand{&t, {}}; };
  const Operand real{nullptr, DType::f64}, whole{nullptr, DType::i64},
      truth{nullptr, DType::boolean};
  CHECK(result_type({tensor(i64), real}) == DType::f32);
  CHECK(result_type({tensor(i64), whole}) == DType::i64);
  CHECK(result_type({tensor(u8), whole}) == DType::u8);
  CHECK(result_type({tensor(f16), real}) == DType::f16);
  CHECK(result_type({tensor(f16), tensor(f64_0)}) == DType::f16);
  CHECK(result_type({tensor(i64), tensor(f64_0)}) == DType::f64);
  CHECK(result_type({tensor(b), tensor(i64_0)}) == DType::i64);
  CHECK(result_type({tensor(b), truth}) == DType::boolean);
  CHECK(result_type({tensor(f32_0), tensor(f64)}) == DType::f64);
  CHECK(result_type({tensor(f64), tensor(c64_0)}) == DType::c128);
  CHECK(result_type({tensor(f32_0), real}) == DType::f32);
}

TEST_CASE("shapes of the operators of a transformer block") {
  CHECK(Call("aten::linear")
            .tensor("input", {2, 3, 4})
            .tensor("weight", {8, 4})
            .tensor("bias", {8})
            .types_text() == "float32[2, 3, 8]");
  CHECK(Call("aten::matmul").tensor("self", {5, 1, 2, 3}).tensor("other", {4, 3, 6}).types_text() ==
        "float32[5, 4, 2, 6]");
  CHECK(Call("aten::matmul").tensor("self", {3}).tensor("other", {3}).types_text() == "float32[]");
  CHECK(Call("aten::embedding")
            .tensor("weight", {65, 8})
            .tensor("indices", {2, 4}, DType::i64)
            .types_text() == "float32[2, 4, 8]");
  CHECK(Call("aten::native_layer_norm")
            .tensor("input", {2, 3, 4})
            .arg("normalized_shape", Ints{4})
            .tensor("weight", {4})
            .arg("bias", {})
            .arg("eps", 1e-5)
            .types_text() == "float32[2, 3, 4] float32[2, 3, 1] float32[2, 3, 1]");
  CHECK(Call("aten::split.Tensor")
            .tensor("self", {2, 7})
            .arg("split_size", int64_t{3})
            .arg("dim", int64_t{-1})
            .types_text() == "float32[2, 3] float32[2, 3] float32[2, 1]");
  CHECK(Call("aten::view").tensor("self", {2, 6}).arg("size", Ints{3, -1}).types_text() ==
        "float32[3, 4]");
  CHECK(Call("aten::cross_entropy_loss")
            .tensor("self", {4, 10})
            .tensor("target", {4}, DType::i64)
            .arg("reduction", int64_t{1})
            .types_text() == "float32[]");
  CHECK(Call("aten::scaled_dot_product_attention")
            .tensor("query", {2, 4, 5, 8})
            .tensor("key", {2, 4, 7, 8})
            .tensor("value", {2, 4, 7, 6})
            .types_text() == "float32[2, 4, 5, 6]");
  CHECK(Call("aten::slice.Tensor")
            .tensor("self", {10})
            .arg("dim", int64_t{0})
            .arg("start", int64_t{-3})
            .arg("end", int64_t{INT64_MAX})
            .arg("step", int64_t{2})
            .types_text() == "float32[2]");
  CHECK(Call("aten::sum").tensor("self", {2, 3}, DType::boolean).types_text() == "int64[]");
  CHECK(Call("aten::eq.Scalar").tensor("self", {2}).arg("other", 1.0).types_text() == "bool[2]");
  CHECK(Call("aten::div.Tensor")
            .tensor("self", {2}, DType::i64)
            .tensor("other", {2}, DType::i64)
            .types_text() == "float32[2]");
  CHECK(Call("aten::conv2d")
            .tensor("input", {2, 3, 8, 9})
            .tensor("weight", {5, 3, 3, 3})
            .arg("bias", {})
            .arg("stride", Ints{2, 1})
            .arg("padding", Ints{1, 0})
            .types_text() == "float32[2, 5, 4, 7]");
  CHECK(Call("aten::max_pool2d")
            .tensor("self", {1, 2, 5, 5})
            .arg("kernel_size", Ints{2, 2})
            .arg("ceil_mode", true)
            .types_text() == "float32[1, 2, 3, 3]");
  CHECK(Call("aten::arange").arg("end", int64_t{5}).types_text() == "int64[5]");
  CHECK(Call("aten::arange.start_step")
            .arg("start", int64_t{1})
            .arg("end", 2.0)
            .arg("step", 0.3)
            .types_text() == "float32[4]");
}

TEST_CASE("indices go where PyTorch puts them") {
  const auto indexed = [](std::vector<Arg> which) {
    Call c("aten::index.Tensor");
    c.tensor("self", {2, 3, 4, 5});
    std::vector<ValueRef> refs;
    for (const Arg& a : which) {
      if (const auto* shape = std::get_if<Ints>(&a)) {
        c.types.push_back({*shape, DType::i64});
        refs.push_back({static_cast<int>(c.types.size()) - 1});
      } else {
        refs.push_back({-1});
      }
    }
    c.arg("indices", refs);
    return c;
  };
  CHECK(indexed({Ints{7}}).types_text() == "float32[7, 3, 4, 5]");
  CHECK(indexed({{}, Ints{6, 1}, Ints{7}}).types_text() == "float32[2, 6, 7, 5]");
  CHECK(indexed({Ints{6}, {}, Ints{6}}).types_text() == "float32[6, 3, 5]");
  CHECK(indexed({{}, Ints{6, 1}, Ints{7}}).note() == "a 3 4 d, b 1, c -> a b c d");
}

TEST_CASE("a misfit names the operator and both shapes") {
  CHECK(Call("aten::matmul").tensor("self", {2, 3}).tensor("other", {4, 5}).failure() ==
        "[annotate.matmul] float32[2, 3] and float32[4, 5] do not fit; expected an inner size that "
        "is equal ([…, m, k] and […, k, n])");
  CHECK_THAT(Call("aten::linear").tensor("input", {2, 3}).tensor("weight", {4, 5}).failure(),
             Contains("[annotate.linear] float32[2, 3] and float32[4, 5] do not fit"));
  CHECK_THAT(Call("aten::add.Tensor").tensor("self", {2, 3}).tensor("other", {4}).failure(),
             Contains("[annotate.add] float32[2, 3] and float32[4]"));
  CHECK_THAT(Call("aten::view").tensor("self", {2, 3}).arg("size", Ints{4}).failure(),
             Contains("shape [4] does not hold 6 elements of float32[2, 3]"));
  CHECK_THAT(Call("aten::softmax.int").tensor("self", {2}).arg("dim", int64_t{3}).failure(),
             Contains("dimension 3 of a tensor with 1; expected -1 to 0"));
  CHECK_THAT(Call("aten::nonzero").tensor("self", {2}).failure(), Contains("depends on the data"));
  CHECK_THAT(Call("aten::no_such_thing").tensor("self", {2}).failure(),
             Contains("[annotate.table] operator aten::no_such_thing has no entry"));
  CHECK_THAT(Call("aten::linear").tensor("input", {2, 3}).failure(),
             Contains("argument 'weight' is missing; expected a tensor"));
  CHECK_THAT(
      Call("aten::transpose.int").tensor("self", {2, 3}).arg("dim0", std::string("x")).failure(),
      Contains("argument 'dim0' is of another kind; expected an integer"));
}

TEST_CASE("annotations are built from the shapes of the call") {
  CHECK(Call("aten::add.Tensor").tensor("self", {2, 3}).tensor("other", {3}).note() ==
        "a b, b -> a b");
  CHECK(Call("aten::mul.Tensor").tensor("self", {2, 3}).tensor("other", {2, 1}).note() ==
        "a b, a 1 -> a b");
  CHECK(Call("aten::sum.dim_IntList").tensor("self", {2, 3}).arg("dim", Ints{-1}).note() ==
        "a b+ -> a");
  CHECK(Call("aten::mean").tensor("self", {2, 3}).note() == "a+ b+ -> 1");
  CHECK(Call("aten::view").tensor("self", {2, 12}).arg("size", Ints{2, 3, 4}).note() ==
        "a (b c) -> a b c");
  CHECK(Call("aten::view").tensor("self", {6, 4}).arg("size", Ints{4, 6}).note() == "6 4 -> 4 6");
  CHECK(Call("aten::view").tensor("self", {4, 6}).arg("size", Ints{8, 3}).note() ==
        "a (b c) -> (a b) c");
  CHECK(Call("aten::cat").tensors("tensors", {{2, 3}, {2, 4}}).arg("dim", int64_t{1}).note() ==
        "a 3, a 4 -> a 7");
  CHECK(Call("aten::conv2d")
            .tensor("input", {2, 3, 8, 8})
            .tensor("weight", {5, 3, 3, 3})
            .arg("bias", {})
            .note() == "n c+ 8 8, o c+ 3 3 -> n o 6 6");
}

TEST_CASE("sizes in arguments follow a split") {
  const Call view = Call("aten::view").tensor("self", {4, 6}).arg("size", Ints{4, -1, 3});
  const auto b = bind(view.view());
  REQUIRE(b);
  const auto args = local_args(view.view(), b->split(0, 0, 2), {2, 2, 4, 4});
  CHECK(std::get<Ints>(args[1].value) == Ints{2, 2, 3});
  const auto uneven = local_args(view.view(), b->split(0, 0, 3, true), {2, 1, 4, 4});
  CHECK(std::get<Ints>(uneven[1].value) == Ints{1, 2, 3});

  const Call conv = Call("aten::conv2d")
                        .tensor("input", {2, 4, 8, 8})
                        .tensor("weight", {8, 2, 3, 3})
                        .arg("bias", {})
                        .arg("groups", int64_t{2});
  const auto c = bind(conv.view());
  REQUIRE(c);
  const Split s = c->split(0, 1, 2);
  CHECK(s.identifier == "groups");
  CHECK(std::get<int64_t>(local_args(conv.view(), s, {0, 1, 2, 2})[3].value) == 1);
}

TEST_CASE("a part of a random call knows where it lies") {
  const Call call = Call("nnscaler::dropout")
                        .tensor("input", {4, 6})
                        .arg("p", 0.5)
                        .arg("offset", {})
                        .arg("full", {});
  const auto args = local_args(call.view(), bind(call.view())->split(0, 1, 3), {4, 2, 6, 6});
  CHECK(std::get<Ints>(args[2].value) == Ints{0, 4});
  CHECK(std::get<Ints>(args[3].value) == Ints{4, 6});
}

TEST_CASE("in-place spellings map to their functional operator") {
  CHECK(functional_form("aten::add_.Tensor") == "aten::add.Tensor");
  CHECK(functional_form("aten::relu_") == "aten::relu");
  CHECK(functional_form("aten::copy_") == "aten::copy");
  CHECK(functional_form("aten::pow_.Scalar") == "aten::pow.Tensor_Scalar");
  CHECK(functional_form("aten::__iand__.Tensor") == "aten::__and__.Tensor");
  CHECK_FALSE(functional_form("aten::add.Tensor"));
  CHECK_FALSE(functional_form("aten::__and__.Tensor"));
  CHECK_FALSE(functional_form("aten::transpose_"));
  CHECK_FALSE(functional_form("nnscaler::fill_normal_"));
}

TEST_CASE("flags of a row") {
  CHECK(find("aten::batch_norm")->mutates.size() == 2);
  CHECK(find("aten::add.Tensor") == find("aten::add"));
  CHECK(find("aten::max.dim") != find("aten::max"));
  CHECK(find("aten::nothing_of_the_kind") == nullptr);
  CHECK(is_identity(Call("aten::contiguous").tensor("self", {2}).view()));
  CHECK(is_identity(Call("aten::to.dtype").tensor("self", {2}).arg("dtype", DType::f32).view()));
  CHECK_FALSE(
      is_identity(Call("aten::to.dtype").tensor("self", {2}).arg("dtype", DType::f64).view()));
  CHECK(is_random(
      Call("aten::dropout").tensor("input", {2}).arg("p", 0.1).arg("train", true).view()));
  CHECK_FALSE(is_random(
      Call("aten::dropout").tensor("input", {2}).arg("p", 0.1).arg("train", false).view()));
  CHECK_FALSE(is_random(
      Call("aten::dropout").tensor("input", {2}).arg("p", 0.0).arg("train", true).view()));
}

TEST_CASE("flops and bytes of a matrix product") {
  const Call mm = Call("aten::mm").tensor("self", {2, 3}).tensor("mat2", {3, 4});
  CHECK(flops(mm.view()) == 2 * 2 * 3 * 4);
  CHECK(bytes(mm.view()) == 4 * (6 + 12 + 8));
}

TEST_CASE("fixed annotation texts of all rows parse") {
  for (const Record* row : all_records()) {
    INFO(row->name);
    if (const auto* texts = std::get_if<Texts>(&row->annotations))
      for (const std::string& text : *texts) CHECK(Annotation::parse(text).text() == text);
  }
  CHECK(all_records().size() > 250);
}
