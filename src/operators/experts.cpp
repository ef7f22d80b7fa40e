// Records of mixtures of experts (src/ops/experts.cpp; Shazeer 2017, Fedus 2021, Gale 2022). Tokens
// [..., width] go to the experts that `index` [..., chosen] names, -1 for none, and what those give
// is summed by `weight`. No token is dropped here: whoever limits an expert writes -1.
//
// Three cuts: tokens (every device has all experts), the inner width of the experts (addends), and
// the experts themselves. Those with which a device is left get their tokens from all devices of
// the cut and send back what they made of them (Lepikhin 2020), so tokens are cut with them, along
// the last of their dimensions.
#include <algorithm>
#include <functional>

#include "operators/family.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

struct Experts {
  const TensorType *self, *index, *weight, *up, *down, *gate;
  int64_t count, chosen, tokens;
};
Experts experts_of(const CallView& call) {
  Experts x{&call.tensor("self"),
            &call.tensor("index"),
            &call.tensor("weight"),
            &call.tensor("up"),
            &call.tensor("down"),
            call.maybe_tensor("gate"),
            0,
            0,
            0};
  const Shape &self = x.self->shape, &up = x.up->shape, &index = x.index->shape;
  const bool cubes = up.size() == 3 && self.size() >= 2 && up[2] == self.back();
  if (!cubes || x.down->shape != Shape{up[0], up[2], up[1]})
    misfit(call, *x.up, *x.down, "[experts, inner, width] and [experts, width, inner]");
  if (x.gate != nullptr && x.gate->shape != up)
    misfit(call, *x.up, *x.gate, "a gate of the same shape");
  if (index.size() != self.size() || !std::equal(index.begin(), index.end() - 1, self.begin()) ||
      x.index->dtype != DType::i64)
    misfit(call, *x.self, *x.index, "int64 numbers of experts for each token");
  if (x.weight->shape != index) misfit(call, *x.index, *x.weight, "a weight for each number");
  for (const TensorType* t : {x.weight, x.up, x.down, x.gate})
    if (t != nullptr && (t->dtype != x.self->dtype || !is_floating(t->dtype)))
      misfit(call, *x.self, *t, "one floating dtype");
  x.count = up[0], x.chosen = index.back();
  x.tokens = numel(index) / std::max<int64_t>(1, x.chosen);
  return x;
}
Types experts(const CallView& call) {
  return {*experts_of(call).self};
}
Texts experts_text(const CallView& call) {
  const DimTexts lead = letters(call.rank("self") - 1);
  const auto behind = [&](const char* last) {
    DimTexts dims = lead;
    dims.emplace_back(last);
    return dims;
  };
  const DimTexts tokens = behind("width^"), choice = behind("chosen^");
  const DimTexts up = {"experts^", "inner+", "width^"}, down = {"experts^", "width^", "inner+"};
  std::vector<DimTexts> in = {tokens, choice, choice, up, down};
  if (call.has("gate")) in.push_back(up);
  return {annotation(in, {tokens})};
}
// Experts and the last dimension of tokens, together.
std::vector<annotate::TransformRule> experts_rules(const CallView& call) {
  using Kind = TensorSplit::Kind;
  const TensorSplit tokens{Kind::dims, {static_cast<int>(call.rank("self")) - 2}, false};
  const TensorSplit matrices{Kind::dims, {0}, false};
  annotate::TransformRule rule{3, 0, {tokens, tokens, tokens, matrices, matrices}, {tokens}, {}};
  if (call.has("gate")) rule.inputs.push_back(matrices);
  return {rule};
}
double experts_flops(const CallView& call) {
  const Experts x = experts_of(call);
  const double products = x.gate == nullptr ? 2 : 3;
  return 2 * products * static_cast<double>(x.tokens * x.chosen) *
         static_cast<double>(x.up->shape[1] * x.up->shape[2]);
}

bool cuts_experts(const CallView&, const Split& split) {
  return split.inputs.at(3).axes == std::vector<int>{0};
}

// Writes calls that have derivatives, for a whole call and for a part alike.
class Writer {
 public:
  using Call = std::function<std::vector<Ref>(std::string_view op, std::vector<NamedArg> args)>;
  Writer(const RuleCall& call, Call write) : call_(call), write_(std::move(write)) {}

  template <class... A>
  Ref operator()(std::string_view op, A&&... values) const {
    return write_(op, named_args(op, {to_arg(std::forward<A>(values))...})).front();
  }
  template <class... A>
  Ref plain(std::string_view op, A&&... values) const {
    return call_.e(op, std::forward<A>(values)...);
  }

  // Rows of the tokens, one for each number, sorted by `order`.
  Ref rows(Ref order) const {
    const Shape shape = call_.shape("self");
    const Ref flat = reshape(call_.in("self"), {numel(shape) / shape.back(), shape.back()});
    const Ref token = plain("aten::floor_divide.Scalar", order, call_.shape("index").back());
    return (*this)("aten::index_select", flat, 0, token);
  }
  // What the experts make of their rows.
  Ref experts(Ref rows, Ref counts) const {
    Ref hidden = (*this)("nnscaler::grouped_linear", rows, call_.in("up"), counts);
    if (call_.has("gate"))
      hidden = (*this)(
          "aten::mul.Tensor",
          activated((*this)("nnscaler::grouped_linear", rows, call_.in("gate"), counts)), hidden);
    else
      hidden = activated(hidden);
    return (*this)("nnscaler::grouped_linear", hidden, call_.in("down"), counts);
  }
  // The sum for each token of its rows, which `place` finds.
  Ref sum(Ref rows, Ref place) const {
    Shape each = call_.shape("index");
    each.push_back(call_.shape("self").back());
    const Ref found = reshape((*this)("aten::index_select", rows, 0, place), each);
    const Ref weight = (*this)("aten::unsqueeze", call_.in("weight"), -2);
    return reshape((*this)("aten::matmul", weight, found), call_.shape("self"));
  }

 private:
  Ref reshape(Ref x, const Shape& shape) const { return (*this)("aten::reshape", x, shape); }
  Ref activated(Ref x) const {
    const std::string name = call_.text("activation", "silu");
    if (name != "silu" && name != "gelu" && name != "relu")
      call_.fail(fmt::format("activation '{}'; expected silu, gelu or relu", name));
    return (*this)("aten::" + name, x);
  }

  const RuleCall& call_;
  Call write_;
};

bool expand(Forward& f) {
  if (!f.training()) return false;
  const Writer w(f, [&](std::string_view op, std::vector<NamedArg> args) {
    std::vector<Arg> values;
    for (NamedArg& a : args) values.push_back(std::move(a.value));
    return f.grad_calls(op, std::move(values));
  });
  const auto sorted = f.e.emit("nnscaler::sort_by_expert", f.in("index"), f.shape("up")[0]);
  f.result(w.sum(w.experts(w.rows(sorted[0]), sorted[2]), sorted[1]));
  return true;
}

// Experts on several devices: rows go to the devices of their experts and come back.
std::optional<std::vector<Ref>> part(Part& p) {
  const Shape ranks = p.placed.ranks_of("up", [](int64_t d) { return d == 0; });
  if (ranks.empty()) return std::nullopt;
  const Writer w(p, [&](std::string_view op, std::vector<NamedArg> args) {
    return p.apply(op, std::move(args));
  });
  const Shape ring = p.placed.ring("up", 0);
  const auto n = static_cast<int64_t>(p.placed.lengths("up", 0).size());
  const int64_t all = p.placed.whole("up")[0], here = p.shape("up")[0];
  const int64_t places = numel(p.shape("index")), chosen = p.shape("index").back();
  // At most: every token of the devices for each expert here that it may choose.
  const size_t last = p.shape("index").size() - 2;
  Shape tokens = p.shape("index");
  tokens[last] = p.placed.whole("index")[last];
  int64_t most = numel(tokens) / std::max<int64_t>(1, chosen) * std::min(chosen, here);
  if (const int64_t capacity = p.integer("capacity", 0); capacity > 0)
    most = std::min(most, here * capacity);

  const auto exchange = [&](Ref rows, Ref sends, Ref receives, int64_t count) {
    const std::vector<TensorType> types{{{count, p.e.shape(rows)[1]}, p.e.dtype(rows)}};
    return p
        .apply("comm::exchange_rows",
               {{"self", rows},
                {"sends", sends},
                {"receives", receives},
                {"rows", count},
                {"ring", ring}},
               &types)
        .front();
  };
  const auto mine = p.e.emit("nnscaler::sort_by_expert", p.in("index"), all);
  // How many rows go to each device for each of its experts, and how many come from each.
  const Ref counts = p.e.reshape(mine[2], {n, here});
  const Ref one = p.e.full(counts, {{n}, DType::i64}, 1);
  const Ref given = exchange(counts, one, one, n);
  const auto of_device = [&](Ref x) { return p("aten::sum.dim_IntList", x, Shape{1}, false); };
  const Ref sends = of_device(counts), receives = of_device(given);
  const Ref arrived = exchange(w.rows(mine[0]), sends, receives, most);
  const auto theirs =
      p.e.emit("nnscaler::sort_by_expert", p("nnscaler::experts_of_rows", given, most), here);
  const Ref made = w.experts(w("aten::index_select", arrived, 0, theirs[0]), theirs[2]);
  const Ref back = exchange(w("aten::index_select", made, 0, theirs[1]), receives, sends, places);
  return {{w.sum(back, mine[1])}};
}

// --- what they are made of
// ------------------------------------------------------------------------

const Shape& numbers(const CallView& call, const char* name) {
  const TensorType& t = call.tensor(name);
  if (t.dtype != DType::i64) misfit(call, t, t, "int64 numbers");
  return t.shape;
}
Types sorted(const CallView& call) {
  const int64_t places = numel(numbers(call, "index"));
  const TensorType each{{places}, DType::i64};
  return {each, each, {{call.integer("experts")}, DType::i64}};
}
Types of_rows(const CallView& call) {
  if (numbers(call, "counts").size() != 2)
    call.fail("counts have not the shape [sources, experts]");
  return {{{call.integer("rows")}, DType::i64}};
}
Types limited(const CallView& call) {
  numbers(call, "index");
  if (call.integer("experts") < 1 || call.integer("capacity") < 1)
    call.fail("no experts, or a capacity of none");
  return {first(call)};
}

Types grouped(const CallView& call) {
  const TensorType &self = call.tensor("self"), &weight = call.tensor("weight");
  const Shape &x = self.shape, &w = weight.shape;
  if (x.size() != 2 || w.size() != 3 || x[1] != w[2] || self.dtype != weight.dtype)
    misfit(call, self, weight, "[rows, in] and [experts, out, in] of one dtype");
  if (numbers(call, "counts") != Shape{w[0]})
    misfit(call, weight, call.tensor("counts"), "a count for each expert");
  return {{{x[0], w[1]}, self.dtype}};
}
Types grouped_backward(const CallView& call) {
  grouped(call);
  const auto mask = call.bools("output_mask");
  const TensorType &self = call.tensor("self"), &weight = call.tensor("weight");
  return {mask.at(0) ? self : undefined_output(self.dtype),
          mask.at(1) ? weight : undefined_output(weight.dtype)};
}
double grouped_flops(const CallView& call) {
  const Shape w = call.shape("weight");
  return 2 * static_cast<double>(call.shape("self")[0]) * static_cast<double>(w[1] * w[2]);
}
double grouped_backward_flops(const CallView& call) {
  const auto mask = call.bools("output_mask");
  return (mask.at(0) + mask.at(1)) * grouped_flops(call);
}
void grouped_back(Backward& b) {
  const std::vector<bool> mask = {b.needs("self"), b.needs("weight")};
  const auto outs = b.e.emit("nnscaler::grouped_linear_backward", b.grad(), b.in("self"),
                             b.in("weight"), b.in("counts"), mask);
  b.give("self", outs[0]);
  b.give("weight", outs[1]);
}

}  // namespace

void add_experts(Records& records) {
  records.add({"nnscaler::experts"}, {.infer = experts,
                                      .annotations = experts_text,
                                      .flops = experts_flops,
                                      .kind = Kind::experts,
                                      .autocast = {Cast::lower, Cast::lower},
                                      .derivative = expands(expand),
                                      .assisted = cuts_experts,
                                      .part = part,
                                      .rules = experts_rules});
  records.add({"nnscaler::sort_by_expert"}, {.infer = sorted, .constant = true});
  records.add({"nnscaler::experts_of_rows"}, {.infer = of_rows, .constant = true});
  records.add({"nnscaler::limit_experts"}, {.infer = limited, .constant = true});
  records.add({"nnscaler::grouped_linear"},
              {.infer = grouped,
               .annotations = Texts{"rows^ in+, experts^ out in+, experts^ -> rows^ out"},
               .flops = grouped_flops,
               .derivative = gradient(grouped_back)});
  records.add({"nnscaler::grouped_linear_backward"},
              {.infer = grouped_backward, .flops = grouped_backward_flops});

  records.examples("nnscaler::experts",
                   "{ n = 6, f(2, 6, 8), i(4, 2, 6, 2), f(2, 6, 2), f(4, 10, 8), f(4, 8, 10), f(4, "
                   "10, 8) }, { n "
                   "= 7, f(6, 8), i(4, 6, 1), f(6, 1), f(4, 10, 8), f(4, 8, 10), nil, 'relu' }");
  records.examples("nnscaler::sort_by_expert", "{ i(4, 6, 2), 4 }");
  records.examples("nnscaler::experts_of_rows", "{ i(3, 2, 4), 20 }");
  records.examples("nnscaler::limit_experts", "{ i(4, 6, 2), 4, 2 }");
  records.examples("nnscaler::grouped_linear", "{ f(12, 6), f(4, 8, 6), i(3, 4) }");
  records.examples("nnscaler::grouped_linear_backward",
                   "{ f(12, 8), f(12, 6), f(4, 8, 6), i(3, 4), { true, true } }");
}

}  // namespace nns::operators
