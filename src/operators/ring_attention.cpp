// Causal attention of a text that is cut along its length over several devices. Queries stay; keys
// and values go round the ring of devices, a piece at a time, and what each piece gives is joined
// (Liu 2023; Dao 2022 for the join). Where pieces are of one even length, every device first takes
// one half from the front and one from the back of the text, so that all have as much to do
// (zigzag). Backward sends keys and values round again, and with them their gradients.
//
// Where no fused kernel serves the call, every device gets all keys and values.
#include <algorithm>

#include "operators/family.h"
#include "operators/flash.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

constexpr int64_t kLength = 2;  // dimension of [batch, heads, length, width]

// The pieces of the text, and which of their pairs there is something to do for.
class Ring {
 public:
  explicit Ring(const CallView& call)
      : lengths_(call.ints("lengths")),
        position_(call.integer("position")),
        zigzag_(call.boolean("zigzag")) {}

  int64_t size() const { return static_cast<int64_t>(lengths_.size()); }
  bool zigzag() const { return zigzag_; }
  // The piece that lies here after `turns` turns of the ring.
  int64_t piece(int64_t turns) const { return ((position_ - turns) % size() + size()) % size(); }
  int64_t length(int64_t piece) const { return lengths_.at(static_cast<size_t>(piece)); }

  // Of another piece: the first query here that sees keys of it, and how many keys it sees; none
  // where no query does.
  struct Seen {
    int64_t from = 0, keys = 0;
  };
  Seen seen(int64_t piece) const {
    const int64_t half = length(position_) / 2;
    if (!zigzag_) return {0, piece < position_ ? length(piece) : 0};
    return piece < position_ ? Seen{0, half} : Seen{half, 2 * half};
  }

 private:
  Shape lengths_;
  int64_t position_;
  bool zigzag_;
};

// Writes the calls of both directions.
class Turns {
 public:
  explicit Turns(RuleCall& call) : ring(call), call_(call), e_(call.e) {}

  Ref rotated(Ref x, int64_t piece) const {
    TensorType type = e_.type(x);
    type.shape[kLength] = ring.length(piece);
    return e_
        .call_typed("comm::rotate",
                    {{"self", x},
                     {"dim", kLength},
                     {"length", ring.length(piece)},
                     {"ring", call_.arg("ring")}},
                    {type})
        .front();
  }
  // Between the order of the text and zigzag.
  Ref ordered(Ref x, bool back) const {
    if (!ring.zigzag()) return x;
    return e_
        .call_typed("comm::zigzag",
                    {{"self", x}, {"dim", kLength}, {"ring", call_.arg("ring")}, {"back", back}},
                    {e_.type(x)})
        .front();
  }
  Ref part(Ref x, int64_t from, int64_t length) const {
    if (length == e_.shape(x).at(kLength)) return x;
    return e_("aten::narrow", x, kLength, from, length);
  }
  Ref rest(Ref x, int64_t from) const { return part(x, from, e_.shape(x).at(kLength) - from); }
  // Keys or values for each of the queries' heads.
  Ref all_heads(Ref x) const {
    const int64_t groups = heads() / e_.shape(x)[1];
    return groups == 1 ? x : e_("aten::repeat_interleave.self_int", x, groups, 1);
  }
  Ref own_heads(Ref grad, Ref like) const {
    const int64_t own = e_.shape(like)[1];
    if (own == heads()) return grad;
    Shape grouped = e_.shape(grad);
    grouped[1] = heads() / own;
    grouped.insert(grouped.begin() + 1, own);
    return e_("aten::sum.dim_IntList", e_.reshape(grad, grouped), Shape{2}, false);
  }
  // x with `more` added to its rows from `from` on.
  Ref plus(Ref x, Ref more, int64_t from) const {
    if (e_.shape(x) == e_.shape(more)) return e_.add(x, more);
    return e_("nnscaler::add_rows", x, more, from);
  }

  const Ring ring;

 private:
  int64_t heads() const { return call_.shape("query")[1]; }

  RuleCall& call_;
  CallWriter& e_;
};

bool forward(Forward& f) {
  const Turns t(f);
  const auto attend = [&](Ref q, Ref k, Ref v, bool causal) {
    return f.e.emit("nnscaler::attention", q, t.all_heads(k), t.all_heads(v), causal,
                    f.arg("scale"));
  };
  const Ref query = t.ordered(f.in("query"), false), key = t.ordered(f.in("key"), false);
  const Ref value = t.ordered(f.in("value"), false);
  auto made = attend(query, key, value, true);
  Ref k = key, v = value;
  for (int64_t turn = 1; turn < t.ring.size(); ++turn) {
    const int64_t piece = t.ring.piece(turn);
    k = t.rotated(k, piece);
    v = t.rotated(v, piece);
    const auto [from, keys] = t.ring.seen(piece);
    if (keys == 0) continue;
    const auto more = attend(t.rest(query, from), t.part(k, 0, keys), t.part(v, 0, keys), false);
    made = f.e.emit("nnscaler::join_attention", made[0], made[1], more[0], more[1], from);
  }
  f.result(t.ordered(made[0], true));
  f.keep("ring_query", query);
  f.keep("ring_key", key);
  f.keep("ring_value", value);
  f.keep("ring_out", made[0]);
  f.keep("ring_logsumexp", made[1]);
  return true;
}

void backward(Backward& b) {
  const Turns t(b);
  const Ref grad = t.ordered(b.grad(), false), query = b.kept("ring_query");
  const Ref out = b.kept("ring_out"), sums = b.kept("ring_logsumexp");
  Ref k = b.kept("ring_key"), v = b.kept("ring_value");
  // Gradients of the queries from `from` on and of so many keys and values.
  const auto derive = [&](int64_t from, int64_t keys, bool causal) {
    const Ref key = t.part(k, 0, keys), value = t.part(v, 0, keys);
    auto outs = b.e.emit("nnscaler::attention_backward", t.rest(grad, from), t.rest(query, from),
                         t.all_heads(key), t.all_heads(value), t.rest(out, from),
                         t.rest(sums, from), causal, b.arg("scale"));
    outs[1] = t.own_heads(outs[1], key);
    outs[2] = t.own_heads(outs[2], value);
    return outs;
  };
  const auto own = derive(0, b.e.shape(k).at(kLength), true);
  Ref d_query = own[0], d_key = own[1], d_value = own[2];
  for (int64_t turn = 1; turn < t.ring.size(); ++turn) {
    const int64_t piece = t.ring.piece(turn);
    for (Ref* x : {&k, &v, &d_key, &d_value}) *x = t.rotated(*x, piece);
    const auto [from, keys] = t.ring.seen(piece);
    if (keys == 0) continue;
    const auto more = derive(from, keys, false);
    d_query = t.plus(d_query, more[0], from);
    d_key = t.plus(d_key, more[1], 0);
    d_value = t.plus(d_value, more[2], 0);
  }
  const int64_t here = t.ring.piece(t.ring.size());
  b.give("query", t.ordered(d_query, true));
  b.give("key", t.ordered(t.rotated(d_key, here), true));
  b.give("value", t.ordered(t.rotated(d_value, here), true));
}

// What the fused kernel takes.
bool fused(const Part& p) {
  const Shape q = p.shape("query"), k = p.shape("key"), v = p.shape("value");
  if (q.size() != 4 || k != v || q[0] != k[0] || q[3] != k[3] || k[1] == 0 || q[1] % k[1] != 0)
    return false;
  // Of pieces each sees all of another, or as much of its own.
  return p.e.device() == "cpu" ||
         (flash_takes(p.e.device(), p.type("query").dtype) && flash_serves(q[2], q[2], q[3], true));
}

// Attention to all keys, gathered, of the queries here.
Ref gathered(Part& p, const Shape& ranks) {
  const int64_t dim = p.rank("query") - 2;
  const int64_t whole = p.placed.whole("key").at(static_cast<size_t>(dim));
  if (!p.placed.ascending("key", dim))
    nns::fail(
        ErrorKind::plan,
        "[operators.attention] {}: pieces of the text lie on devices in descending order, and "
        "no fused kernel serves the call; expected ascending order",
        p.e.module());
  const auto all = [&](const char* name) {
    TensorType type = p.type(name);
    type.shape[static_cast<size_t>(dim)] = whole;
    const std::vector<TensorType> types{type};
    return p
        .apply("comm::all_gather",
               {{"self", p.in(name)},
                {"dim", dim},
                {"whole", whole},
                {"group", ranks},
                {"partial", true}},
               &types)
        .front();
  };
  const auto positions = [&](int64_t count) {  // from 1
    return p("aten::cumsum", p.e.full(p.in("query"), {{count}, DType::i64}, 1.0), 0);
  };
  const Ref key = all("key"), value = all("value");
  const int64_t start = p.placed.place("query", dim, [](int64_t first, int64_t) { return first; });
  const Ref here =
      p("aten::add.Scalar", positions(p.shape("query").at(static_cast<size_t>(dim))), start);
  const Ref mask = p("aten::ge.Tensor", p("aten::unsqueeze", here, 1), positions(whole));
  return p.grad("aten::scaled_dot_product_attention", p.in("query"), key, value, mask, 0.0, false,
                p.arg("scale"), p.boolean("enable_gqa"));
}

}  // namespace

bool cuts_text(const CallView& call, const Split& split) {
  const int dim = static_cast<int>(call.rank("query")) - 2;
  return split.inputs.at(1).axes == std::vector<int>{dim};
}

std::optional<std::vector<Ref>> ring_part(Part& p) {
  const int64_t dim = p.rank("query") - 2;
  const Shape ranks = p.placed.ranks_of("key", [dim](int64_t d) { return d == dim; });
  if (ranks.empty()) return std::nullopt;
  if (!fused(p)) return {{gathered(p, ranks)}};
  const Shape lengths = p.placed.lengths("query", dim);
  const bool zigzag =
      lengths[0] % 2 == 0 &&
      std::all_of(lengths.begin(), lengths.end(), [&](int64_t n) { return n == lengths[0]; });
  const std::vector<TensorType> types{p.type("query")};
  return p.apply("comm::ring_attention",
                 {{"query", p.in("query")},
                  {"key", p.in("key")},
                  {"value", p.in("value")},
                  {"scale", p.arg("scale")},
                  {"lengths", lengths},
                  {"position", p.placed.position("query", dim)},
                  {"zigzag", zigzag},
                  {"ring", p.placed.ring("query", dim)}},
                 &types);
}

namespace {

Types joined(const CallView& call) {
  const TensorType &out = call.tensor("self"), &other = call.tensor("other");
  if (out.shape.size() != 4 || other.shape.size() != 4 || out.dtype != other.dtype)
    misfit(call, out, other, "[batch, heads, length, width] of one dtype");
  return {out, call.tensor("logsumexp")};
}
Types rows_added(const CallView& call) {
  const TensorType &self = call.tensor("self"), &other = call.tensor("other");
  if (self.shape.size() != 4 || other.shape.size() != 4 || self.dtype != other.dtype)
    misfit(call, self, other, "[batch, heads, length, width] of one dtype");
  return {self};
}

}  // namespace

void add_ring_attention(Records& records) {
  constexpr std::string_view ring =
      "comm::ring_attention(Tensor query, Tensor key, Tensor value, float? scale, int[] lengths, "
      "int position, bool zigzag, int[] ring) -> Tensor";
  records.add({ring.substr(0, ring.find('('))}, {.schema = parse_schema(ring),
                                                 .communication = Communication::adapter,
                                                 .derivative = rewrite(forward, backward)});
  records.add({"nnscaler::join_attention"},
              {.infer = joined,
               .annotations = Texts{"b h l^ w^, b h l^, b h o^ w^, b h o^ -> b h l^ w^, b h l^"}});
  records.add({"nnscaler::add_rows"},
              {.infer = rows_added, .annotations = Texts{"b h l^ w, b h o^ w -> b h l^ w"}});
  records.examples("nnscaler::join_attention",
                   "{ f(2, 4, 6, 8), f(2, 4, 6), f(2, 4, 3, 8), f(2, 4, 3), 3 }");
  records.examples("nnscaler::add_rows", "{ f(2, 4, 6, 8), f(2, 4, 3, 8), 2 }");
}

}  // namespace nns::operators
