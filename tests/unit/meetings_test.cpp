// Where ranks wait for each other: what the check of all ranks' Programs lets pass, and which rank
// it names when messages and collectives do not meet.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "lower/check_ranks.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;

namespace {

// Programs of so many ranks whose forwards do what is told, on one stage.
class Ranks {
 public:
  explicit Ranks(int ranks) {
    const auto graph = test::linears({8, 6});
    plan::Builder b(graph, ranks, ranks);
    for (const graph::Node& node : graph->nodes) b.replicate(node.id, ranks);
    plan_ = b.finish("hand");
    for (int rank = 0; rank < ranks; ++rank) {
      Program& program = programs_.emplace_back();
      program.rank = rank;
      program.world = ranks;
      program.segments.resize(2);
      program.segments[0].name = "forward";
      program.segments[1].name = "backward";
      program.segments[1].kind = SegmentKind::backward;
    }
  }

  Ranks& send(int from, int to, int64_t tag, const TensorType& type = {{2, 3}, DType::f32}) {
    Instr instr = message("comm::send", from, to, tag, type);
    instr.args.insert(instr.args.begin(), {"self", Ref{instr.outs[0]}});
    instr.outs.clear();
    return add(from, std::move(instr));
  }
  Ranks& receive(int at, int from, int64_t tag, const TensorType& type = {{2, 3}, DType::f32}) {
    return add(at, message("comm::receive", at, from, tag, type));
  }
  Ranks& collective(int at, const std::string& op, const Shape& group,
                    const TensorType& type = {{2, 3}, DType::f32}, size_t results = 1) {
    Instr instr;
    instr.op = op;
    instr.module = "m" + std::to_string(at);
    instr.args = {{"self", Ref{slot(at, type)}}, {"group", group}};
    for (size_t i = 0; i < results; ++i) instr.outs.push_back(slot(at, type));
    return add(at, std::move(instr));
  }
  Ranks& sum(int at, const Shape& group) { return collective(at, "comm::all_reduce", group); }

  // What the check says, or nothing.
  std::string said() const {
    std::vector<const Program*> all;
    for (const Program& program : programs_) all.push_back(&program);
    try {
      check_ranks(all, plan_);
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::internal);
      return e.message();
    }
    return "";
  }

 private:
  int slot(int rank, const TensorType& type) {
    auto& slots = programs_[static_cast<size_t>(rank)].slots;
    slots.push_back({static_cast<int>(slots.size()), type, SlotRole::activation, "", {}, {}});
    return slots.back().id;
  }
  Instr message(const char* op, int at, int peer, int64_t tag, const TensorType& type) {
    Instr instr;
    instr.op = op;
    instr.module = "m" + std::to_string(at);
    Shape moves{peer};
    for (int64_t size : type.shape) moves.insert(moves.end(), {0, size});
    instr.args = {{"moves", moves}, {"tag", tag}};
    instr.outs = {slot(at, type)};
    return instr;
  }
  Ranks& add(int rank, Instr instr) {
    programs_[static_cast<size_t>(rank)].segments[0].instrs.push_back(std::move(instr));
    return *this;
  }

  plan::Plan plan_;
  std::vector<Program> programs_;
};

void says(const Ranks& ranks, const std::string& text) {
  CHECK_THAT(ranks.said(), Catch::Contains(text));
}

}  // namespace

TEST_CASE("messages meet by sender, tag and order", "[ranks]") {
  CHECK(Ranks(2).send(0, 1, 0).receive(1, 0, 0).said() == "");
  // With tags of their own, in any order.
  CHECK(Ranks(2).send(0, 1, 0).send(0, 1, 1).receive(1, 0, 1).receive(1, 0, 0).said() == "");
  CHECK(Ranks(3).send(0, 2, 0).send(1, 2, 0).receive(2, 1, 0).receive(2, 0, 0).said() == "");
  // One after another where the tag is the same.
  const TensorType wide{{2, 5}, DType::f32};
  CHECK(Ranks(2).send(0, 1, 0).send(0, 1, 0, wide).receive(1, 0, 0).receive(1, 0, 0, wide).said() ==
        "");
  says(Ranks(2).send(0, 1, 0, wide).send(0, 1, 0).receive(1, 0, 0).receive(1, 0, 0, wide),
       "rank 1 expects 2×3×float32 (m1) from rank 0, which sends 2×5×float32 (m0)");
  says(Ranks(2).send(0, 1, 0, {{2, 3}, DType::f64}).receive(1, 0, 0),
       "rank 1 expects 2×3×float32 (m1) from rank 0, which sends 2×3×float64 (m0)");
  says(Ranks(2).send(0, 1, 0).receive(1, 0, 1),
       "rank 1 waits for 2×3×float32 (m1) of micro-batch "
       "0 from rank 0, which never sends it");
  says(Ranks(2).send(0, 1, 7),
       "rank 0 sends 2×3×float32 (m0) to rank 1 in micro-batch 0, which "
       "never receives it");
  for (const int peer : {-1, 2, 3})
    for (const bool sends : {true, false}) {
      Ranks ranks(2);
      sends ? ranks.send(0, peer, 0) : ranks.receive(0, peer, 0);
      says(ranks, "rank 0 has a message for rank " + std::to_string(peer) + " of 2");
    }
}

TEST_CASE("of ranks that wait for each other the cause is named", "[ranks]") {
  says(Ranks(2).receive(0, 1, 0).send(0, 1, 0).receive(1, 0, 0).send(1, 0, 0),
       "rank 0 waits for 2×3×float32 (m0) of micro-batch 0 from rank 1, which waits itself before "
       "it sends it");
  // Rank 2 waits for nothing that comes; the others wait for it.
  says(Ranks(3).receive(0, 1, 0).sum(1, {1, 2}).send(1, 0, 0).receive(2, 0, 5).sum(2, {1, 2}),
       "rank 2 waits for 2×3×float32 (m2) of micro-batch 0 from rank 0, which never sends it");
  says(Ranks(2).sum(0, {0, 1}),
       "rank 0 waits for ever at comm::all_reduce of float32 float32[2, 3] (m0) in group 0,1; rank "
       "1 has ended");
  says(Ranks(3).sum(0, {0, 1}).sum(1, {1, 2}).sum(1, {0, 1}).sum(2, {0, 2}),
       "rank 0 waits for ever at comm::all_reduce of float32 float32[2, 3] (m0) in group 0,1; rank "
       "1 calls comm::all_reduce of float32 float32[2, 3] (m1) in group 1,2");
  says(Ranks(2).sum(0, {0, 1}).send(0, 1, 0).receive(1, 0, 0).sum(1, {0, 1}),
       "in group 0,1; rank 1 waits for rank 0");
}

TEST_CASE("collectives meet where all members make the same call", "[ranks]") {
  CHECK(Ranks(3).sum(0, {0, 1, 2}).sum(1, {0, 1, 2}).sum(2, {0, 1, 2}).said() == "");
  CHECK(Ranks(3).sum(0, {0, 1}).sum(1, {0, 1}).sum(1, {1, 2}).sum(2, {1, 2}).said() == "");
  says(Ranks(3).sum(0, {1, 2}),
       "rank 0 calls comm::all_reduce of float32 float32[2, 3] (m0) in "
       "group 1,2, of which it is not a member");
  for (const int64_t other : {-1, 2, 3}) says(Ranks(2).sum(0, {0, other}), "; there are 2 ranks");
  const auto two = [](const std::string& a, const TensorType& x, const std::string& b,
                      const TensorType& y, size_t n = 1, size_t m = 1) {
    return Ranks(2).collective(0, a, {0, 1}, x, n).collective(1, b, {0, 1}, y, m);
  };
  const TensorType f{{2, 3}, DType::f32}, wide{{2, 5}, DType::f32}, flat{{6}, DType::f32},
      d{{2, 3}, DType::f64};
  const std::string sum = "comm::all_reduce", gather = "comm::all_gather";
  // Parts of a gather may be uneven, addends may not.
  CHECK(two(gather, f, gather, wide).said() == "");
  says(two(sum, f, sum, wide),
       "the ranks of group 0,1 disagree: rank 0 calls comm::all_reduce of "
       "float32 float32[2, 3] (m0), rank 1 calls comm::all_reduce of "
       "float32 float32[2, 5] (m1)");
  says(two(gather, f, gather, flat), "disagree");
  says(two(gather, f, gather, d), "disagree");
  says(two(gather, f, sum, f), "disagree");
  const std::string scatter = "comm::scatter_gradients";
  CHECK(two(scatter, f, scatter, f, 2, 2).said() == "");
  says(two(scatter, f, scatter, f, 2, 3),
       "× 2 (m0), rank 1 calls comm::scatter_gradients of "
       "float32 2 × 3 (m1)");
  says(two(scatter, f, scatter, f, 1, 2), "disagree");
}
