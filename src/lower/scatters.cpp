// Gradients of which each rank keeps a shard, of weights that rest whole, are summed in few
// messages: those of a repeated block that go over the same ranks wait for the last of them. They
// end with the block, so that its instances stay alike.
#include <map>

#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

constexpr const char* kJoined = "comm::scatter_gradients";

class Joiner {
 public:
  // `addends` are those of a micro-batch, by parameter.
  Joiner(const Program& program, Segment& segment, int64_t most, const std::map<int, int>& addends)
      : program_(program), instrs_(segment.instrs), most_(most), addends_(addends) {}

  void run() {
    find();
    if (buckets_.empty()) return;
    std::vector<Instr> out;
    for (size_t i = 0; i < instrs_.size(); ++i) {
      if (const auto bucket = ends_.find(i); bucket != ends_.end())
        write(buckets_[bucket->second], out);
      else if (!taken_[i])
        out.push_back(std::move(instrs_[i]));
    }
    instrs_ = std::move(out);
  }

 private:
  struct Bucket {
    std::string block, like;        // what its members have in common
    std::vector<size_t> scatters;   // instructions
    std::vector<size_t> additions;  // of their results, in the same order
    int64_t bytes = 0;
  };

  // Whether the call is a scatter whose result is all that a micro-batch adds to the gradient of a
  // weight that rests whole. Results of one message lie in one memory, which is that of the
  // gradients: a further addend would stay in it for nothing.
  bool joins(size_t i) const {
    const Instr& instr = instrs_[i];
    if (instr.kind != InstrKind::call || find_arg(instr, "dims") != nullptr ||
        communication_of(instr) != operators::Communication::scatter_gradient)
      return false;
    const auto use = uses_.find(instr.outs.at(0));
    if (use == uses_.end() || use->second.size() != 1) return false;
    const Instr& add = instrs_[use->second[0]];
    return add.kind == InstrKind::accumulate && !program_.slot(add.target).gradient.empty() &&
           addends_.at(add.target) == 1;
  }

  void find() {
    for (size_t i = 0; i < instrs_.size(); ++i)
      for (int slot : reads(instrs_[i])) uses_[slot].push_back(i);
    Bucket open;
    const auto close = [&] {
      if (open.scatters.size() > 1) buckets_.push_back(std::move(open));
      open = {};
    };
    for (size_t i = 0; i < instrs_.size(); ++i) {
      const Instr& instr = instrs_[i];
      if (instr.kind != InstrKind::call) continue;
      const std::string block(block_of(instr.module));
      if (block != open.block) close();
      if (!joins(i)) continue;
      const TensorType& type = program_.slot(reads(instr)[0]).type;
      const std::string like =
          fmt::format("{} {} {}", graph::to_text(argument<Shape>(instr, "group")),
                      name_of(type.dtype), graph::to_text(*find_arg(instr, "empty")));
      if (like != open.like || open.bytes + bytes_of(type) > most_) close();
      open.block = block;
      open.like = like;
      open.scatters.push_back(i);
      open.additions.push_back(uses_.at(instr.outs[0])[0]);
      open.bytes += bytes_of(type);
    }
    close();
    taken_.assign(instrs_.size(), false);
    for (size_t k = 0; k < buckets_.size(); ++k) {
      for (const auto* list : {&buckets_[k].scatters, &buckets_[k].additions})
        for (const size_t i : *list) taken_[i] = true;
      ends_[buckets_[k].scatters.back()] = k;
    }
  }

  // One call in the place of the last scatter, and behind it what adds its results.
  void write(const Bucket& bucket, std::vector<Instr>& out) {
    Instr joined = instrs_[bucket.scatters.back()];
    std::vector<Ref> gradients;
    Shape dims;
    joined.outs.clear();
    for (const size_t i : bucket.scatters) {
      gradients.push_back({reads(instrs_[i])[0]});
      dims.push_back(argument<int64_t>(instrs_[i], "dim"));
      joined.outs.push_back(instrs_[i].outs[0]);
    }
    joined.op = kJoined;
    joined.args = {{"self", std::move(gradients)},
                   {"dims", std::move(dims)},
                   {"group", argument<Shape>(joined, "group")},
                   {"empty", *find_arg(joined, "empty")}};
    out.push_back(std::move(joined));
    for (const size_t i : bucket.additions) out.push_back(std::move(instrs_[i]));
  }

  const Program& program_;
  std::vector<Instr>& instrs_;
  const int64_t most_;
  const std::map<int, int>& addends_;
  std::map<int, std::vector<size_t>> uses_;  // by slot
  std::vector<Bucket> buckets_;
  std::vector<bool> taken_;
  std::map<size_t, size_t> ends_;  // last scatter → bucket
};

}  // namespace

void join_scatters(Program& program, int64_t bytes) {
  std::map<int, int> addends;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs)
      if (instr.kind == InstrKind::accumulate) ++addends[instr.target];
  for (Segment& segment : program.segments) Joiner(program, segment, bytes, addends).run();
}

}  // namespace nns::lower
