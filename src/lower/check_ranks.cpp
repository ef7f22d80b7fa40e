#include "lower/check_ranks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "lower/schedule/pipeline.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

template <class... A>
[[noreturn]] void broken(fmt::format_string<A...> f, A&&... args) {
  fail(ErrorKind::internal, "[lower.ranks] {}", fmt::format(f, std::forward<A>(args)...));
}

const Shape& ints(const Instr& instr, std::string_view name) {
  return argument<Shape>(instr, name);
}

std::string place(const Instr& instr) {
  return instr.module.empty() ? std::string("the model") : instr.module;
}

// One thing that a rank does which others must answer.
struct Event {
  enum Kind { send, receive, collective } kind;
  const Instr* instr = nullptr;
  std::string what;          // operation and type, alike on all members
  std::vector<int> group;    // collective
  int peer = -1, micro = 0;  // message
  int64_t tag = 0;           // message
  std::string region;        // message: lengths and dtype
};

bool is_sum(const Instr& instr) {
  return communication_of(instr) == operators::Communication::all_reduce;
}

// Of one segment, with micro-batch 0.
std::vector<Event> events_of(const Program& program, const Segment& segment) {
  std::vector<Event> out;
  for (const size_t i : begin_order(program, segment)) {
    const Instr& instr = segment.instrs[i];
    if (is_message(instr)) {
      const bool sends = communication_of(instr) == operators::Communication::send;
      const TensorType& type = program.slot(sends ? reads(instr)[0] : instr.outs[0]).type;
      const Shape& moves = ints(instr, "moves");
      const size_t width = 1 + 2 * type.shape.size();
      for (size_t i = 0; i + width <= moves.size(); i += width) {
        Event e{sends ? Event::send : Event::receive, &instr, instr.op, {}, 0, 0, 0, {}};
        e.peer = static_cast<int>(moves[i]);
        e.tag = std::get<int64_t>(*find_arg(instr, "tag"));
        for (size_t d = 0; d < type.shape.size(); ++d)
          e.region += fmt::format("{}×", moves[i + 2 + 2 * d]);
        e.region += name_of(type.dtype);
        out.push_back(std::move(e));
      }
    } else if (is_collective(instr)) {
      Event e{Event::collective, &instr, instr.op, {}, -1, 0, 0, {}};
      const Shape& ranks = ints(instr, "group");
      e.group.assign(ranks.begin(), ranks.end());
      // Parts of uneven cuts differ between ranks; their number of dimensions and dtype do not.
      const TensorType& type = program.slot(instr.outs[0]).type;
      e.what = fmt::format("{} of {} {}", instr.op, name_of(type.dtype),
                           is_sum(instr) ? to_string(type) : std::to_string(type.shape.size()));
      if (instr.outs.size() > 1) e.what += fmt::format(" × {}", instr.outs.size());
      out.push_back(std::move(e));
    }
  }
  return out;
}

// All that a rank does in one step.
std::vector<Event> events_of(const Program& program, const std::vector<Action>& order) {
  std::map<std::pair<char, int>, std::vector<Event>> parts;
  for (const Segment& segment : program.segments)
    parts[{letter_of(segment.kind), segment.stage}] = events_of(program, segment);
  std::vector<Event> out;
  for (const Action& a : order)
    for (Event e : parts[{a.kind, a.stage}]) {
      e.micro = a.micro;
      out.push_back(std::move(e));
    }
  return out;
}

class Play {
 public:
  explicit Play(std::vector<std::vector<Event>> events)
      : events_(std::move(events)), next_(events_.size(), 0) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < events_.size(); ++r)
        while (step(r)) moved = true;
    }
    // Of ranks that wait for each other, first one whose message nobody has left to send.
    for (const bool cause : {true, false})
      for (size_t r = 0; r < events_.size(); ++r)
        if (next_[r] < events_[r].size() && (!cause || is_unsent(r))) stuck(r);
    for (const auto& [key, box] : mail_)
      for (const Event* e : box)
        broken("rank {} sends {} ({}) to rank {} in micro-batch {}, which never receives it",
               std::get<0>(key), e->region, place(*e->instr), std::get<1>(key), e->micro);
  }

 private:
  using Key = std::tuple<int, int, int64_t, int>;  // from, to, tag, micro-batch

  bool step(size_t r) {
    if (next_[r] == events_[r].size()) return false;
    const Event& e = events_[r][next_[r]];
    const int rank = static_cast<int>(r);
    if (e.kind != Event::collective && (e.peer < 0 || static_cast<size_t>(e.peer) >= next_.size()))
      broken("rank {} has a message for rank {} of {}", r, e.peer, next_.size());
    switch (e.kind) {
      case Event::send:
        mail_[{rank, e.peer, e.tag, e.micro}].push_back(&e);
        break;
      case Event::receive: {
        const auto box = mail_.find(Key{e.peer, rank, e.tag, e.micro});
        if (box == mail_.end() || box->second.empty()) return false;
        const Event* sent = box->second.front();
        if (sent->region != e.region)
          broken("rank {} expects {} ({}) from rank {}, which sends {} ({})", r, e.region,
                 place(*e.instr), e.peer, sent->region, place(*sent->instr));
        box->second.pop_front();
        break;
      }
      case Event::collective:
        return meet(rank, e);
    }
    ++next_[r];
    return true;
  }

  // Goes on with all members when each is at this call.
  bool meet(int rank, const Event& e) {
    if (std::find(e.group.begin(), e.group.end(), rank) == e.group.end())
      broken("rank {} calls {} ({}) in group {}, of which it is not a member", rank, e.what,
             place(*e.instr), fmt::join(e.group, ","));
    for (int other : e.group) {
      if (other < 0 || static_cast<size_t>(other) >= next_.size())
        broken("rank {} calls {} ({}) in group {}; there are {} ranks", rank, e.what,
               place(*e.instr), fmt::join(e.group, ","), next_.size());
      const size_t o = static_cast<size_t>(other);
      if (next_[o] == events_[o].size()) return false;
      const Event& theirs = events_[o][next_[o]];
      if (theirs.kind != Event::collective || theirs.group != e.group) return false;
      if (theirs.what != e.what)
        broken("the ranks of group {} disagree: rank {} calls {} ({}), rank {} calls {} ({})",
               fmt::join(e.group, ","), rank, e.what, place(*e.instr), other, theirs.what,
               place(*theirs.instr));
    }
    for (int other : e.group) ++next_[static_cast<size_t>(other)];
    return true;
  }

  // Whether a rank waits for a message that its sender has not still to send.
  bool is_unsent(size_t r) const {
    const Event& e = events_[r][next_[r]];
    if (e.kind != Event::receive) return false;
    const auto& theirs = events_[static_cast<size_t>(e.peer)];
    return std::none_of(theirs.begin(), theirs.end(), [&](const Event& s) {
      return s.kind == Event::send && s.peer == static_cast<int>(r) && s.tag == e.tag &&
             s.micro == e.micro;
    });
  }

  [[noreturn]] void stuck(size_t r) const {
    const Event& e = events_[r][next_[r]];
    if (e.kind == Event::receive)
      broken("rank {} waits for {} ({}) of micro-batch {} from rank {}, which {}", r, e.region,
             place(*e.instr), e.micro, e.peer,
             is_unsent(r) ? "never sends it" : "waits itself before it sends it");
    std::string others;
    for (int other : e.group) {
      const size_t o = static_cast<size_t>(other);
      if (o == r) continue;
      const bool ended = next_[o] == events_[o].size();
      const Event* theirs = ended ? nullptr : &events_[o][next_[o]];
      others += fmt::format("; rank {} {}", other,
                            ended ? std::string("has ended")
                            : theirs->kind == Event::collective
                                ? fmt::format("calls {} ({}) in group {}", theirs->what,
                                              place(*theirs->instr), fmt::join(theirs->group, ","))
                                : fmt::format("waits for rank {}", theirs->peer));
    }
    broken("rank {} waits for ever at {} ({}) in group {}{}", r, e.what, place(*e.instr),
           fmt::join(e.group, ","), others);
  }

  std::vector<std::vector<Event>> events_;
  std::vector<size_t> next_;
  std::map<Key, std::deque<const Event*>> mail_;
};

// --- gradients
// ------------------------------------------------------------------------------------

struct Holding {
  const Share* share;
  const Slot* slot;
  bool gradient;
};

// Whether the value is a sum over the group already: the call that made it, through views.
const Instr* reduction_of(const Segment& segment, int slot) {
  for (size_t i = segment.instrs.size(); i-- > 0;) {
    const Instr& instr = segment.instrs[i];
    if (std::find(instr.outs.begin(), instr.outs.end(), slot) == instr.outs.end()) continue;
    if (is_sum(instr)) return &instr;
    const auto in = reads(instr);
    if (makes_memory(instr) || in.size() != 1) return nullptr;
    slot = in[0];
  }
  return nullptr;
}

size_t common(const Shape& group, const std::vector<int>& ranks) {
  return static_cast<size_t>(std::count_if(group.begin(), group.end(), [&](int64_t g) {
    return std::find(ranks.begin(), ranks.end(), static_cast<int>(g)) != ranks.end();
  }));
}

// What one rank says of its gradients, by parameter.
std::map<std::string, Holding> holdings_of(const Program& program) {
  std::map<std::string, Holding> out;
  for (size_t i = 0; i < program.parameters.size(); ++i) {
    const Slot& slot = program.slot(program.parameters[i]);
    if (!out.emplace(slot.name, Holding{&program.shares.at(i), &slot, false}).second)
      broken("rank {} reduces the gradient of {} twice: it has the parameter twice", program.rank,
             slot.name);
    const auto& ranks = program.shares[i].reduce;
    if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size())
      broken("rank {} reduces the gradient of {} twice: a rank is listed twice in {}", program.rank,
             slot.name, fmt::join(ranks, ","));
  }
  for (const Segment& segment : program.segments) {
    std::set<std::pair<int, int>> seen;
    for (const Instr& instr : segment.instrs) {
      if (is_sum(instr))
        if (const Instr* before = reduction_of(segment, reads(instr)[0]))
          if (common(ints(instr, "group"),
                     {ints(*before, "group").begin(), ints(*before, "group").end()}) > 1)
            broken("rank {} reduces {} twice over group {}", program.rank, place(instr),
                   fmt::join(ints(instr, "group"), ","));
      if (instr.kind != InstrKind::accumulate) continue;
      const Slot& slot = program.slot(instr.target);
      Holding& holding = out.at(slot.name);
      holding.gradient = true;
      const int value = reads(instr)[0];
      if (!seen.emplace(instr.target, value).second)
        broken("rank {} adds %{} twice to the gradient of {}", program.rank, value, slot.name);
      const Instr* before = reduction_of(segment, value);
      if (before != nullptr && common(ints(*before, "group"), holding.share->reduce) > 1)
        broken("rank {} reduces the gradient of {} twice: in {} over group {}, then over {}",
               program.rank, slot.name, place(*before), fmt::join(ints(*before, "group"), ","),
               fmt::join(holding.share->reduce, ","));
    }
  }
  return out;
}

void check_gradients(const std::vector<const Program*>& programs, const plan::Plan& plan) {
  std::vector<std::map<std::string, Holding>> all;
  for (const Program* program : programs) all.push_back(holdings_of(*program));
  for (size_t r = 0; r < all.size(); ++r)
    for (const auto& [name, mine] : all[r]) {
      const auto& ranks = mine.share->reduce;
      const bool listed = std::find(ranks.begin(), ranks.end(), static_cast<int>(r)) != ranks.end();
      if (!ranks.empty() && !listed)
        broken("rank {} sums the gradient of {} over ranks {}, of which it is none", r, name,
               fmt::join(ranks, ","));
      for (int other : ranks) {
        const auto found = static_cast<size_t>(other) < all.size()
                               ? all[static_cast<size_t>(other)].find(name)
                               : all[r].end();
        if (static_cast<size_t>(other) >= all.size() ||
            found == all[static_cast<size_t>(other)].end())
          broken("rank {} sums the gradient of {} with rank {}, which does not hold it", r, name,
                 other);
        if (found->second.share->reduce != ranks || found->second.slot->box != mine.slot->box)
          broken("rank {} sums the gradient of {} over ranks {}, rank {} over {}", r, name,
                 fmt::join(ranks, ","), other, fmt::join(found->second.share->reduce, ","));
      }
      // Scale units see other samples.
      if (!mine.gradient || mine.share->scattered() || mine.share->scatter) continue;
      for (int u = 0; u < plan.units(); ++u) {
        const int twin = static_cast<int>(r) % plan.plan_ngpus + u * plan.plan_ngpus;
        if (plan.units() > 1 && std::find(ranks.begin(), ranks.end(), twin) == ranks.end())
          broken("rank {} never adds the gradient of {} of rank {}, another scale unit", r, name,
                 twin);
      }
    }
}

// Ranks that sum gradients together must do so set by set.
void check_sums(const std::vector<const Program*>& programs) {
  using Sets = std::vector<std::vector<std::string>>;
  std::vector<std::map<std::vector<int>, Sets>> all;  // by rank: ranks → names of each set
  for (const Program* program : programs) {
    auto& own = all.emplace_back();
    for (const GradientSet& set : program->sets) {
      if (set.ranks.empty()) continue;
      auto& names = own[set.ranks].emplace_back();
      for (int slot : set.parameters) names.push_back(program->slot(slot).name);
    }
  }
  for (size_t r = 0; r < all.size(); ++r)
    for (const auto& [ranks, sets] : all[r])
      for (int other : ranks)
        if (const auto& theirs = all.at(static_cast<size_t>(other));
            !theirs.contains(ranks) || theirs.at(ranks) != sets)
          broken("ranks {} and {} sum other sets of gradients over ranks {}", r, other,
                 fmt::join(ranks, ","));
}

}  // namespace

void check_ranks(const std::vector<const Program*>& programs, const plan::Plan& plan) {
  NNS_CHECK(static_cast<int>(programs.size()) == plan.runtime_ngpus, "{} programs of {} ranks",
            programs.size(), plan.runtime_ngpus);
  const bool training = programs.at(0)->training;
  std::vector<std::vector<Action>> orders{{{'F', 0, 0}, {'B', 0, 0}}};
  if (plan.stages > 1)
    orders = (training ? schedule_of(plan, plan.micro_batches) : inference_of(plan, lanes_of(plan)))
                 .orders;
  std::vector<std::vector<Event>> events;
  for (const Program* program : programs) {
    const int device = program->rank % plan.plan_ngpus;
    const int row = plan.stages > 1 ? pipeline_rank(plan, device) : 0;
    events.push_back(events_of(*program, orders.at(static_cast<size_t>(row))));
  }
  Play(std::move(events)).run();
  if (training) {
    check_gradients(programs, plan);
    check_sums(programs);
  }
}

}  // namespace nns::lower
