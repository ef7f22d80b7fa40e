// Which views share memory, and which reshapes copy: chains of calls drawn at random, against the
// addresses of their elements counted one by one.
#include "lower/strides.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "lower/storage.h"
#include "support/graph_text.h"
#include "support/operators.h"

using namespace nns;
using namespace nns::test;
using graph::ValueRef;

namespace {

// A tensor: the memory it lies in, and where each of its elements does.
struct Seen {
  int root = 0;
  Array addresses;  // elements are addresses
};

int draw(int low, int high) {  // [low, high)
  return *rc::gen::inRange(low, high);
}

std::vector<double> counted(int64_t n) {
  std::vector<double> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// Whether some strides give these addresses in this shape.
bool fits(const Shape& shape, const std::vector<double>& list) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = shape[d] > 1 ? static_cast<int64_t>(list[static_cast<size_t>(step)] - list[0]) : 0;
    step *= shape[d];
  }
  size_t next = 0;
  bool out = true;
  each(shape, [&](const Index& index) {
    double at = list[0];
    for (size_t d = 0; d < index.size(); ++d) at += static_cast<double>(index[d] * strides[d]);
    out = out && at == list[next++];
  });
  return out;
}

class Chain {
 public:
  explicit Chain(Shape shape) {
    graph_.values.push_back({0, {shape, DType::f64}, graph::Role::input, false, "x", -1, {}});
    const int64_t n = numel(shape);
    seen_.push_back({0, Array::of(std::move(shape), counted(n))});
  }

  // Calls an operator; what it makes lies where `x` does.
  std::vector<int> view(const std::string& op, int x, std::vector<graph::NamedArg> more = {}) {
    more.insert(more.begin(), {"self", ValueRef{x}});
    const std::vector<int> outs = add_call(graph_, op, more);
    const auto results = evaluate(
        {op, graph_.nodes.back().args, [&](int id) { return seen_.at(at(id)).addresses; }, {}});
    for (const Array& result : results) seen_.push_back({seen_[at(x)].root, result});
    return outs;
  }
  // Calls one that copies where no strides do.
  int maybe(const std::string& op, int x, std::vector<graph::NamedArg> more, bool stays) {
    const int out = view(op, x, std::move(more))[0];
    if (!stays) own(out);
    return out;
  }
  int reshape(int x, const Shape& to) {
    return maybe("aten::reshape", x, {{"shape", to}}, fits(to, list(x)));
  }
  int join(const std::vector<int>& parts, int64_t dim, bool beside) {
    std::vector<ValueRef> refs;
    for (int part : parts) refs.push_back({part});
    const int out = add_call(graph_, "nnscaler::join", {{"tensors", refs}, {"dim", dim}})[0];
    std::vector<Array> all;
    for (int part : parts) all.push_back(seen_[at(part)].addresses);
    seen_.push_back({seen_[at(parts[0])].root, cat(all, static_cast<size_t>(dim))});
    if (!beside) own(out);
    return out;
  }
  const Shape& shape(int x) const { return seen_[at(x)].addresses.shape; }
  std::vector<double> list(int x) const { return seen_[at(x)].addresses.elements(); }

  lower::Program program() const {
    lower::Program out;
    for (const graph::Value& value : graph_.values)
      out.slots.push_back({value.id,
                           value.type,
                           value.id == 0 ? lower::SlotRole::input : lower::SlotRole::activation,
                           "",
                           {},
                           {}});
    out.segments.resize(1);
    for (const graph::Node& node : graph_.nodes) {
      lower::Instr instr;
      instr.op = node.op;
      instr.args = node.args;
      instr.outs = node.outputs;
      out.segments[0].instrs.push_back(std::move(instr));
    }
    return out;
  }
  // Slots that have another memory than the addresses say, as text.
  std::string wrong() const {
    const lower::Program program = this->program();
    const lower::Strides strides(program);
    std::string text;
    for (size_t i = 0; i < seen_.size(); ++i)
      if (strides.root(static_cast<int>(i)) != seen_[i].root)
        text += "%" + std::to_string(i) + " lies in " +
                std::to_string(strides.root(static_cast<int>(i))) + ", not in " +
                std::to_string(seen_[i].root) + "; ";
    return text.empty() ? text : text + lower::to_text(program);
  }

 private:
  static size_t at(int i) { return static_cast<size_t>(i); }
  void own(int x) {
    Array& addresses = seen_[at(x)].addresses;
    seen_[at(x)] = {x, Array::of(addresses.shape, counted(addresses.count()))};
  }
  graph::Graph graph_;
  std::vector<Seen> seen_;
};

// A shape of as many elements.
Shape random_shape(int64_t elements) {
  Shape out;
  while (elements > 1 && out.size() < 3) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= elements; ++d)
      if (elements % d == 0) divisors.push_back(d);
    out.push_back(divisors[static_cast<size_t>(draw(0, static_cast<int>(divisors.size())))]);
    elements /= out.back();
  }
  if (elements > 1 || out.empty()) out.push_back(elements);
  return out;
}

// One more call on x; returns one of its results.
int grow(Chain& chain, int x) {
  const Shape shape = chain.shape(x);
  const int rank = static_cast<int>(shape.size());
  if (rank == 0) return chain.view("aten::unsqueeze", x, {{"dim", int64_t{0}}})[0];
  const int64_t d = draw(0, rank), length = shape[static_cast<size_t>(d)];
  const int64_t named = draw(0, 2) == 0 ? d : d - rank;
  const auto any = [&](const std::vector<int>& outs) {
    return outs[static_cast<size_t>(draw(0, static_cast<int>(outs.size())))];
  };
  switch (draw(0, 13)) {
    case 0: {
      const int64_t start = draw(0, static_cast<int>(length));
      const int64_t n = draw(1, static_cast<int>(length - start) + 1);
      return chain.view(
          "aten::narrow", x,
          {{"dim", named}, {"start", draw(0, 2) == 0 ? start : start - length}, {"length", n}})[0];
    }
    case 1: {
      const int64_t start = draw(0, static_cast<int>(length)), step = draw(1, 3);
      return chain.view("aten::slice.Tensor", x,
                        {{"dim", named},
                         {"start", draw(0, 2) == 0 ? start : start - length},
                         {"end", length},
                         {"step", step}})[0];
    }
    case 2: {
      const int64_t index = draw(0, static_cast<int>(length));
      return chain.view("aten::select.int", x,
                        {{"dim", named}, {"index", draw(0, 2) == 0 ? index : index - length}})[0];
    }
    case 3:
      return chain.view("aten::transpose.int", x,
                        {{"dim0", named}, {"dim1", int64_t{draw(0, rank)}}})[0];
    case 4: {
      Shape dims(static_cast<size_t>(rank));
      std::iota(dims.begin(), dims.end(), 0);
      for (size_t i = dims.size(); i-- > 1;)
        std::swap(dims[i], dims[static_cast<size_t>(draw(0, static_cast<int>(i) + 1))]);
      return chain.view("aten::permute", x, {{"dims", dims}})[0];
    }
    case 5:
      return chain.view("aten::unsqueeze", x, {{"dim", d}})[0];
    case 6:
      return length == 1 ? chain.view("aten::squeeze.dim", x, {{"dim", named}})[0] : x;
    case 7: {
      Shape wide = shape;
      for (int64_t& size : wide)
        if (size == 1) size = draw(1, 4);
      if (rank < 4) wide.insert(wide.begin(), draw(1, 3));
      return numel(wide) > 200
                 ? x
                 : chain.view("aten::expand", x, {{"size", wide}, {"implicit", false}})[0];
    }
    case 8:
      return any(chain.view(
          "aten::split.Tensor", x,
          {{"split_size", int64_t{draw(1, static_cast<int>(length) + 1)}}, {"dim", named}}));
    case 9:
      return any(chain.view("aten::unbind.int", x, {{"dim", named}}));
    case 10: {
      const auto list = chain.list(x);
      bool dense = true;
      for (size_t i = 0; i < list.size(); ++i)
        dense = dense && list[i] == list[0] + static_cast<double>(i);
      return chain.maybe("aten::contiguous", x, {}, dense);
    }
    case 11: {
      const int64_t from = draw(0, rank), to = draw(static_cast<int>(from), rank);
      Shape flat(shape.begin(), shape.begin() + from);
      flat.push_back(std::accumulate(shape.begin() + from, shape.begin() + to + 1, int64_t{1},
                                     std::multiplies<>()));
      flat.insert(flat.end(), shape.begin() + to + 1, shape.end());
      return chain.maybe("aten::flatten.using_ints", x, {{"start_dim", from}, {"end_dim", to}},
                         fits(flat, chain.list(x)));
    }
    default:
      return chain.reshape(x, random_shape(numel(shape)));
  }
}

}  // namespace

TEST_CASE("views lie where their elements do, and copies apart") {
  CHECK(rc::check([] {
    Chain chain(random_shape(*rc::gen::element(6, 8, 12, 24, 30)));
    int x = 0;
    const int calls = draw(1, 7);
    for (int i = 0; i < calls; ++i) x = grow(chain, x);
    for (int i = 0; i < 2; ++i) x = chain.reshape(x, random_shape(numel(chain.shape(x))));
    const std::string wrong = chain.wrong();
    if (!wrong.empty()) RC_FAIL(wrong);
  }));
}

TEST_CASE("what lies side by side is joined in place") {
  for (const bool turned : {false, true})
    for (const int64_t dim : {0, 1}) {
      INFO(dim << (turned ? " turned" : ""));
      Chain chain({4, 6});
      const int x = turned ? chain.view("aten::transpose.int", 0,
                                        {{"dim0", int64_t{0}}, {"dim1", int64_t{1}}})[0]
                           : 0;
      const auto parts =
          chain.view("aten::split.Tensor", x, {{"split_size", int64_t{2}}, {"dim", dim}});
      REQUIRE(parts.size() >= 2);
      const int a = parts[0], b = parts[1];
      chain.join({a, b}, dim, true);
      chain.join(parts, dim, true);
      chain.join({b, a}, dim, false);
      chain.join({a, a}, dim, false);
      chain.join({a, b}, 1 - dim, false);
      const int whole = chain.join({a, b}, dim, true);
      chain.reshape(whole, {numel(chain.shape(whole))});
      CHECK(chain.wrong() == "");
    }
}

TEST_CASE("every view knows where it begins", "[strides]") {
  // Parts that follow one another are joined in place, others are not.
  const auto joined = [](const Shape& shape, int64_t dim, bool beside, auto a, auto b) {
    Chain chain(shape);
    const int first = a(chain), second = b(chain);
    INFO(lower::to_text(chain.program()));
    chain.join({first, second}, dim, beside);
    CHECK(chain.wrong() == "");
  };
  const auto narrow = [](int64_t dim, int64_t start, int64_t length) {
    return [=](Chain& c) {
      return c.view("aten::narrow", 0, {{"dim", dim}, {"start", start}, {"length", length}})[0];
    };
  };
  const auto slice = [](int64_t dim, int64_t start, int64_t end, int64_t step) {
    return [=](Chain& c) {
      return c.view("aten::slice.Tensor", 0,
                    {{"dim", dim}, {"start", start}, {"end", end}, {"step", step}})[0];
    };
  };
  const auto select = [](int64_t dim, int64_t index) {
    return [=](Chain& c) {
      return c.view("aten::select.int", 0, {{"dim", dim}, {"index", index}})[0];
    };
  };
  for (const int64_t dim : {0, 1})
    for (const int64_t named : {dim, dim - 2}) {
      INFO("dimension " << named);
      const Shape shape{6, 6};
      joined(shape, dim, true, narrow(named, 0, 2), narrow(named, 2, 3));
      joined(shape, dim, true, narrow(named, -6, 2), narrow(named, -4, 3));
      joined(shape, dim, true, narrow(named, 1, 3), narrow(named, -2, 2));
      joined(shape, dim, false, narrow(named, 1, 2), narrow(named, 2, 2));
      joined(shape, dim, false, narrow(named, -2, 2), narrow(named, 0, 2));
      joined(shape, dim, true, slice(named, 0, 2, 1), slice(named, 2, 4, 1));
      joined(shape, dim, true, slice(named, -6, -3, 1), slice(named, -3, 9, 1));
      joined(shape, dim, true, slice(named, 0, 2, 1), narrow(named, 2, 1));
      joined(shape, dim, true, slice(named, 0, 4, 2), slice(named, 4, 6, 2));
      joined(shape, dim, false, slice(named, 0, 4, 2), slice(named, 4, 6, 1));
      joined(shape, dim, false, slice(named, 0, 4, 2), slice(named, 5, 6, 2));
    }
  joined({4, 6}, 0, true, select(0, 1), select(0, 2));
  joined({4, 6}, 0, true, select(0, -3), select(0, -2));
  joined({4, 6}, 0, false, select(0, 1), select(0, 3));
  joined({4, 6}, 0, false, select(1, 1), select(1, 2));
  const auto unbound = [](int64_t dim, size_t i) {
    return [=](Chain& c) { return c.view("aten::unbind.int", 0, {{"dim", dim}})[i]; };
  };
  joined({4, 6}, 0, true, unbound(0, 1), unbound(0, 2));
  joined({4, 6}, 0, false, unbound(0, 0), unbound(0, 2));
  joined({4, 6}, 0, false, unbound(1, 1), unbound(1, 2));
  joined({4, 2, 6}, 1, true, unbound(1, 0), unbound(1, 1));
  // Through other views, which keep where they begin.
  const auto turned = [](int64_t index) {
    return [=](Chain& c) {
      const int t = c.view("aten::permute", 0, {{"dims", Shape{2, 0, 1}}})[0];
      const int row = c.view("aten::select.int", t, {{"dim", int64_t{1}}, {"index", index}})[0];
      return c.view("aten::transpose.int", row, {{"dim0", int64_t{0}}, {"dim1", int64_t{1}}})[0];
    };
  };
  joined({4, 2, 6}, 0, true, turned(1), turned(2));
  joined({4, 2, 6}, 0, false, turned(2), turned(1));
}

TEST_CASE("bytes of memory are those of what it was made as") {
  Chain chain({4, 6});
  const int row =
      chain.view("aten::select.int", 0, {{"dim", int64_t{0}}, {"index", int64_t{1}}})[0];
  const lower::Program program = chain.program();
  const lower::Strides strides(program);
  CHECK(strides.bytes(strides.root(row)) == 4 * 6 * 8);
}
