// The grammar of dimension annotations: parsing, binding to shapes, what a split does.
#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "annotate/grammar.h"
#include "base/error.h"
#include "operators/family.h"

using namespace nns;
using namespace nns::annotate;
using Catch::Contains;
using operators::reshape_text;
using Kind = TensorSplit::Kind;

namespace {

std::string refusal(const std::string& text) {
  try {
    Annotation::parse(text);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::plan);
    return e.message();
  }
  return "accepted";
}

Binding bound(const std::string& text, std::vector<Shape> in, std::vector<Shape> out,
              std::map<std::string, int64_t> arguments = {}) {
  std::string why = "bound";
  auto b = Binding::bind(Annotation::parse(text), in, out, arguments, &why);
  INFO(text << ": " << why);
  REQUIRE(b.has_value());
  return *b;
}
std::string mismatch(const std::string& text, std::vector<Shape> in, std::vector<Shape> out) {
  std::string why = "bound";
  Binding::bind(Annotation::parse(text), in, out, {}, &why);
  return why;
}

}  // namespace

TEST_CASE("annotations read and write the same text") {
  for (const std::string text :
       {"m k+, k+ n -> m n", "* k^, n k^, n -> * n", "b (h d^) -> b h d^", "?, n^ -> n^",
        "a 3 -> a 3", "a -> ", "a b : /, c -> a b c", "a b : /c, c -> a b c", "? : /, a -> a"})
    CHECK(Annotation::parse(text).text() == text);
  CHECK(Annotation::parse("  m  k+,k+   n->m n ").text() == "m k+, k+ n -> m n");
}

TEST_CASE("a wrong annotation is refused with position and expectation") {
  CHECK(refusal("a b") == "[annotate.grammar] 'a b': the end at position 3; expected ',' or '->'");
  CHECK(refusal("a, -> a") ==
        "[annotate.grammar] 'a, -> a': '-' at position 3; expected an "
        "identifier, an integer, '(', '*' or '?'");
  CHECK_THAT(refusal("(a (b c)) -> a"),
             Contains("'(' at position 3; expected an identifier or ')'"));
  CHECK_THAT(refusal("(a *) -> a"), Contains("'*' at position 3; expected an identifier or ')'"));
  CHECK_THAT(refusal("() -> a"), Contains("expected an identifier in the bracket"));
  CHECK_THAT(refusal("3x -> 3x"), Contains("position 0; expected an identifier that starts"));
  CHECK_THAT(refusal("* a * -> a"), Contains("one '*' in a shape at most"));
  CHECK_THAT(refusal("a -> *"), Contains("'*' in an output; expected one in an input"));
  CHECK_THAT(refusal("a+, a^ -> 1"), Contains("'a' has two marks; expected the same everywhere"));
  CHECK_THAT(refusal("a : b -> a"), Contains("expected '/' after ':'"));
  CHECK_THAT(refusal("a : /z -> a"), Contains("'/z' names no dim of an input"));
  CHECK_THAT(refusal("a -> a & b"), Contains("'&' at position 7; expected ',' or the end"));
}

TEST_CASE("a matrix product splits as rows, columns or sums") {
  const Binding b = bound("m k+, k+ n -> m n", {{4, 6}, {6, 8}}, {{4, 8}});
  CHECK(b.transform_space() == std::vector<Place>{{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  const Split rows = b.split(0, 0, 2);
  CHECK(rows.identifier == "m");
  CHECK(rows.inputs[0] == TensorSplit{Kind::dims, {0}, false});
  CHECK(rows.inputs[1].kind == Kind::replicate);
  CHECK(rows.outputs[0] == TensorSplit{Kind::dims, {0}, false});
  const Split sum = b.split(0, -1, 3);
  CHECK(sum.inputs[1] == TensorSplit{Kind::dims, {0}, false});
  CHECK(sum.outputs[0].kind == Kind::value);
  CHECK_THROWS_WITH(
      b.split(0, 0, 3),
      Contains("cannot split dim 0 of input 0 into 3: 'm' is 4 long, which 3 does not"));
  CHECK_THROWS_WITH(b.split(2, 0, 2), Contains("dim 0 of input 2 is never split"));
}

TEST_CASE("stars expand alike and to none") {
  const Binding b = bound("* k^, n k^, n -> * n", {{2, 4, 6}, {8, 6}, {8}}, {{2, 4, 8}});
  CHECK(b.transform_space() == std::vector<Place>{{0, 0}, {0, 1}, {1, 0}, {2, 0}});
  CHECK(b.split(0, 1, 2).outputs[0].axes == std::vector<int>{1});
  CHECK(bound("* k+, k+ -> *", {{5}, {5}}, {{}}).transform_space().size() == 2);
  CHECK(bound("*^ a -> *^ a", {{2, 3}}, {{2, 3}}).transform_space() == std::vector<Place>{{0, 1}});
  CHECK_THAT(mismatch("* a, * -> * a", {{2, 3}, {2, 2, 2}}, {{2, 3}}),
             Contains("'*' is 1 dims and 3"));
}

TEST_CASE("only the leading identifier of a bracket splits; ones are skipped") {
  const Binding b = bound("(h d) -> h d", {{6}}, {{2, 3}});
  CHECK(b.identifier(0, 0) == "h");
  CHECK(b.split(0, 0, 2).outputs[0].axes == std::vector<int>{0});
  CHECK(bound("h d -> (h d)", {{2, 3}}, {{6}}).transform_space() == std::vector<Place>{{0, 0}});
  CHECK(bound("h d -> (h d)", {{1, 3}}, {{3}}).identifier(0, 1) == "d");
  CHECK(bound("(h d) -> h d", {{3}}, {{1, 3}}).identifier(0, 0) == "d");
}

TEST_CASE("a hidden length comes from other dims or from an argument") {
  CHECK(bound("(h d) -> h d", {{6}}, {{2, 3}}).length("d") == 3);
  CHECK(bound("n (g c), (g o) c -> n (g o)", {{2, 6}, {4, 3}}, {{2, 4}}, {{"g", 2}}).length("o") ==
        2);
  CHECK_THAT(mismatch("(a b) -> 6", {{6}}, {{6}}), Contains("cannot be told apart"));
  CHECK_THAT(mismatch("(a 4) -> a", {{6}}, {{2}}), Contains("dim 0 of [6] is not a multiple of 4"));
  CHECK_THAT(mismatch("a a -> a", {{2, 3}}, {{2}}), Contains("dim 1 of [2, 3] should be 2"));
}

TEST_CASE("the slash marks an input whose gradient is not summed") {
  const Binding b = bound("a b : /c, c -> a b c", {{2, 2}, {4}}, {{2, 2, 4}});
  CHECK(b.split(1, 0, 2).inputs[0].keeps_gradient);
  CHECK_FALSE(b.split(0, 0, 2).inputs[0].keeps_gradient);
  CHECK(bound("? : /, c -> c", {{2, 2}, {4}}, {{4}}).split(1, 0, 2).inputs[0].keeps_gradient);
}

TEST_CASE("an identifier on several dims of a tensor cuts them all") {
  const Split s = bound("a a -> a", {{4, 4}}, {{4}}).split(0, 0, 2);
  CHECK(s.inputs[0].axes == std::vector<int>{0, 1});
}

TEST_CASE("every annotation that parses reads back from its own text") {
  rc::check([](const std::vector<uint8_t>& picks) {
    static const std::vector<std::string> pieces = {"a",    "b+", "c^", "*", "(", ")",  "3", ", ",
                                                    " -> ", "?",  " ",  ":", "/", "d2", " "};
    std::string text;
    for (const uint8_t p : picks) text += pieces[p % pieces.size()];
    try {
      const std::string once = Annotation::parse(text).text();
      RC_ASSERT(Annotation::parse(once).text() == once);
    } catch (const Error& e) {
      RC_ASSERT(e.kind() == ErrorKind::plan);
      RC_ASSERT(e.message().find("[annotate.grammar]") == 0);
    }
  });
}

TEST_CASE("a reshape annotation fits its shapes, and its splits hold the same elements") {
  const auto divisors = [](int64_t n) {
    std::vector<int64_t> out;
    for (int64_t d = 1; d <= n; ++d)
      if (n % d == 0) out.push_back(d);
    return out;
  };
  // Sizes of 1 may stand anywhere.
  const auto shape_of = [&](int64_t count) {
    Shape shape;
    while (count > 1) {
      if (*rc::gen::arbitrary<bool>()) shape.push_back(1);
      auto factors = divisors(count);
      factors.erase(factors.begin());
      shape.push_back(*rc::gen::elementOf(factors));
      count /= shape.back();
    }
    return shape;
  };
  rc::check([&] {
    const int64_t count = *rc::gen::element<int64_t>(1, 2, 6, 8, 12, 24, 36, 48);
    const Shape from = shape_of(count), to = shape_of(count);
    const Binding b = bound(reshape_text(from, to).at(0), {from}, {to});
    for (const Place place : b.transform_space()) {
      const auto id = *b.identifier(place.input, place.dim);
      for (const int64_t parts : divisors(b.length(id))) {
        const Split s = b.split(place.input, place.dim, parts);
        RC_ASSERT(s.inputs[0].axes.size() == 1u);
        RC_ASSERT(s.outputs[0].axes.size() == 1u);
        // Part p of the input has the flat indices of part p of the output: their first element and
        // their stride agree.
        const auto outer = [](const Shape& shape, int axis) {
          int64_t n = 1;
          for (int i = 0; i < axis; ++i) n *= shape[static_cast<size_t>(i)];
          return n;
        };
        RC_ASSERT(outer(from, s.inputs[0].axes[0]) == outer(to, s.outputs[0].axes[0]));
      }
    }
  });
}

TEST_CASE("an annotation tells the shapes of outputs") {
  const auto shapes = [](const char* text, std::vector<Shape> inputs,
                         std::map<std::string, int64_t> arguments = {}) {
    std::string why;
    const auto out = output_shapes(Annotation::parse(text), inputs, arguments, &why);
    return out ? *out : std::vector<Shape>{{-1}};
  };
  CHECK(shapes("n k+, h k+ -> n h", {{4, 6}, {8, 6}}) == std::vector<Shape>{{4, 8}});
  CHECK(shapes("* k+, h k+ -> * h", {{2, 3, 6}, {8, 6}}) == std::vector<Shape>{{2, 3, 8}});
  CHECK(shapes("n (h d) -> n h d, 1", {{4, 6}}, {{"h", 2}}) == std::vector<Shape>{{4, 2, 3}, {1}});
  std::string why;
  CHECK_FALSE(output_shapes(Annotation::parse("n k, h k -> n h"), {{4, 6}, {8, 5}}, {}, &why));
  CHECK_THAT(why, Contains("dim 1 of [8, 5] should be 6"));
  CHECK_FALSE(output_shapes(Annotation::parse("n (h d) -> n h"), {{4, 6}}, {}, &why));
  CHECK_THAT(why, Contains("the length of 'h' is not known"));
}

TEST_CASE("parts of given sizes make up a dim of its own") {
  const auto b =
      *Binding::bind(Annotation::parse("(a b) k -> (a b) k"), {{6, 8}}, {{6, 8}}, {{"a", 2}});
  using Sizes = std::vector<int64_t>;
  CHECK_FALSE(b.refusal(0, 1, Sizes{3, 5}));
  CHECK(b.refusal(0, 1, Sizes{3, 6}) ==
        "sizes 3,6 are not those of 2 parts of 'k', which is 8 long");
  CHECK_THAT(*b.refusal(0, 1, Sizes{9, -1}), Contains("sizes 9,-1 are not those of 2 parts"));
  CHECK(b.refusal(0, 0, Sizes{1, 1}) ==
        "'a' is only part of a dim: given sizes need a dim of its own");
  CHECK(b.refusal(0, 2, Sizes{1, 1}) == "dim 2 of input 0 is never split");
}

TEST_CASE("a transform rule goes before the annotation") {
  auto b = *Binding::bind(Annotation::parse("n, v^ d -> n d"), {{5}, {8, 4}}, {{5, 4}});
  CHECK_FALSE(b.identifier(1, 0));
  using Kind = TensorSplit::Kind;
  TransformRule rule{1,
                     0,
                     {{Kind::replicate, {}, false}, {Kind::dims, {0}, false}},
                     {{Kind::value, {}, false}},
                     {}};
  b.add_rules({rule}, {{5}, {8, 4}});
  CHECK(b.refusal(1, 0, 3) == "'rule of input 1 dim 0' is 8 long, which 3 does not divide");
  CHECK(b.refusal(1, 0, 3, true));  // a rule takes equal parts
  CHECK_THAT(*b.refusal(1, 0, std::vector<int64_t>{2, 6}), Contains("which makes equal parts"));
  const Split s = b.split(1, 0, 2);
  CHECK(s.outputs[0].kind == Kind::value);
  CHECK(s.inputs[1].axes == std::vector<int>{0});
  CHECK(b.transform_space().size() == 3);
  rule.outputs.clear();
  CHECK_THROWS_WITH(b.add_rules({rule}, {{5}, {8, 4}}), Contains("has 2 inputs and 0 outputs"));
}
