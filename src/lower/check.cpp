// Static check of one rank's Program.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

class Checker {
 public:
  explicit Checker(const Program& program) : program_(program) {
    for (const auto* leaves : {&program.parameters, &program.buffers, &program.constants})
      lasting_.insert(leaves->begin(), leaves->end());
  }

  void run() {
    check_casts();
    for (const Segment& segment : program_.segments) check_segment(segment);
    where_ = "schedule: ";
    for (const Action& action : program_.schedule)
      if (std::none_of(program_.segments.begin(), program_.segments.end(), [&](const Segment& s) {
            return letter_of(s.kind) == action.kind && s.stage == action.stage;
          }))
        broken("{} of stage {}, which has no such segment", action.kind, action.stage);
  }

 private:
  template <class... A>
  [[noreturn]] void broken(fmt::format_string<A...> f, A&&... args) const {
    fail(ErrorKind::internal, "[lower.check] {}{}", where_,
         fmt::format(f, std::forward<A>(args)...));
  }

  std::string name(int slot) const {
    const std::string& name = program_.slot(slot).name;
    return name.empty() ? fmt::format("%{}", slot) : fmt::format("%{} ({})", slot, name);
  }

  // Each gives another cast, of a parameter alone, which lasts as long as micro-batches run.
  void check_casts() {
    for (size_t i = 0; i < program_.casts.size(); ++i) {
      where_ = fmt::format("cast {}: ", i);
      const Instr& instr = program_.casts[i];
      if (instr.kind != InstrKind::call || instr.outs.size() != 1 ||
          program_.slot(instr.outs[0]).role != SlotRole::cast)
        broken("{} makes no cast", instr.op);
      for (int slot : reads(instr))
        if (program_.slot(slot).role != SlotRole::parameter)
          broken("it reads {}, which is not a parameter", name(slot));
      if (!lasting_.insert(instr.outs[0]).second) broken("{} is made twice", name(instr.outs[0]));
    }
    made_ = lasting_;
  }

  void check_segment(const Segment& segment) {
    where_ = fmt::format("segment {}: ", segment.name);
    live_ = lasting_;
    fixed_ = lasting_;
    for (int in : segment.inputs) {
      live_.insert(in);
      fixed_.insert(in);
    }
    for (int slot : segment.saved_in) {
      if (!handed_.contains(slot)) broken("saved value {} is not provided", name(slot));
      live_.insert(slot);
    }
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      where_ = fmt::format("segment {}, instruction {}: ", segment.name, i);
      check_instr(segment.instrs[i]);
    }
    where_ = fmt::format("segment {}: ", segment.name);
    for (int out : segment.outputs)
      if (!live_.contains(out)) broken("output {} is gone at the end", name(out));
    for (int slot : segment.saved_out) {
      if (!live_.contains(slot)) broken("saved value {} is gone at the end", name(slot));
      handed_.insert(slot);
    }
    size_t end = 0;
    for (const BlockRun& run : segment.blocks) {
      if (run.first < end || run.last <= run.first || run.last > segment.instrs.size())
        broken("block {} covers [{}, {}) of {} instructions, after {}", run.path, run.first,
               run.last, segment.instrs.size(), end);
      end = run.last;
    }
    check_ahead(segment);
    end = 0;
    for (const Loop& loop : segment.loops) {
      if (loop.first < end || loop.size == 0 || loop.last() > segment.instrs.size())
        broken("a loop covers [{}, {}) of {} instructions, after {}", loop.first, loop.last(),
               segment.instrs.size(), end);
      end = loop.last();
    }
  }

  // Gathers begin before the block that calls them, outside of others, and no earlier than the
  // block before it does: two blocks have whole weights at most.
  void check_ahead(const Segment& segment) const {
    const Ahead* before = nullptr;
    for (const Ahead& mark : segment.ahead) {
      if (mark.block >= segment.blocks.size())
        broken("gathers of block {} begin; there are {}", mark.block, segment.blocks.size());
      const BlockRun& run = segment.blocks[mark.block];
      if (mark.after >= run.first)
        broken("gathers of {} begin after {} instructions, the block after {}", run.path,
               mark.after, run.first);
      if (mark.block > 0 && mark.after < segment.blocks[mark.block - 1].first)
        broken("gathers of {} begin before block {}", run.path,
               segment.blocks[mark.block - 1].path);
      for (const BlockRun& other : segment.blocks)
        if (other.first < mark.after && mark.after < other.last)
          broken("gathers of {} begin inside of block {}", run.path, other.path);
      if (before != nullptr && (mark.after < before->after || mark.block <= before->block))
        broken("gathers of {} begin after those of {}", run.path,
               segment.blocks[before->block].path);
      before = &mark;
    }
  }

  void check_instr(const Instr& instr) {
    for (int slot : reads(instr))
      if (!live_.contains(slot))
        broken("{} is used {}", name(slot),
               made_.contains(slot) ? "after its release" : "before it is made");
    switch (instr.kind) {
      case InstrKind::release:
        for (int slot : reads(instr)) {
          if (fixed_.contains(slot)) broken("{} is not this segment's to release", name(slot));
          if (live_.erase(slot) == 0) broken("{} is released twice", name(slot));
          handed_.erase(slot);
        }
        break;
      case InstrKind::accumulate:
        if (program_.slot(instr.target).role != SlotRole::parameter)
          broken("gradient of {}, which is not a parameter", name(instr.target));
        if (gradient_type(program_.slot(instr.target)) != program_.slot(reads(instr)[0]).type)
          broken("gradient {} of parameter {}, of which it is {}",
                 to_string(program_.slot(reads(instr)[0]).type), name(instr.target),
                 to_string(gradient_type(program_.slot(instr.target))));
        if (is_owned(instr)) live_.erase(reads(instr)[0]);
        break;
      case InstrKind::update:
        if (program_.slot(instr.target).role != SlotRole::buffer)
          broken("update of {}, which is not a buffer", name(instr.target));
        break;
      case InstrKind::call:
        if (is_in_place(instr)) {
          const int into = reads(instr)[0];
          if (fixed_.contains(into)) broken("{} writes {}", instr.op, name(into));
          live_.erase(into);
        }
        break;
    }
    for (int out : instr.outs) {
      if (out < 0) continue;
      if (!made_.insert(out).second) broken("{} is made twice", name(out));
      live_.insert(out);
    }
  }

  const Program& program_;
  std::set<int> lasting_, fixed_, live_, made_, handed_;
  std::string where_;
};

}  // namespace

void check(const Program& program) {
  Checker(program).run();
}

}  // namespace nns::lower
