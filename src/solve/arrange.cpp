#include "solve/arrange.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "graph/nest.h"

namespace nns::solve {

using lower::Schedule;

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

// Stages as ranges of places.
std::vector<std::pair<size_t, size_t>> ranges(size_t size, const std::vector<size_t>& begins) {
  std::vector<std::pair<size_t, size_t>> out;
  size_t begin = 0;
  for (size_t next : begins) {
    out.emplace_back(begin, next);
    begin = next;
  }
  out.emplace_back(begin, size);
  return out;
}

}  // namespace

std::vector<std::vector<size_t>> again(const Space& space, const Arrangement& arrangement) {
  std::vector<std::vector<size_t>> out;
  if (arrangement.recompute <= 0) return out;
  const auto& segments = space.segments();
  for (const auto& [begin, end] : ranges(space.sequence().size(), arrangement.begins)) {
    std::vector<std::vector<size_t>> blocks;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (!space.listed()[s]) continue;
      const size_t stop = s + 1 < segments.size() ? segments[s + 1] : space.sequence().size();
      std::vector<size_t> places;
      for (size_t i = std::max(segments[s], begin); i < std::min(stop, end); ++i)
        if (space.nodes()[i] >= 0) places.push_back(i);
      if (!places.empty()) blocks.push_back(std::move(places));
    }
    const double part = arrangement.recompute * static_cast<double>(blocks.size());
    blocks.resize(static_cast<size_t>(std::ceil(part - 1e-9)));
    for (auto& block : blocks) out.push_back(std::move(block));
  }
  return out;
}

// The cuts are those of candidates, which plan::Builder allowed.
plan::Plan plan_of(const Space& space, const Arrangement& arrangement, const std::string& policy) {
  const Problem& problem = space.problem();
  const int width = problem.width(), m = problem.settings.micro_batches;
  plan::Plan plan;
  plan.policy = policy;
  plan.plan_ngpus = problem.plan_ngpus;
  plan.runtime_ngpus = problem.runtime_ngpus;
  plan.stages = static_cast<int>(arrangement.begins.size()) + 1;
  plan.schedule = arrangement.schedule;
  plan.micro_batches = m;
  plan.chunks = plan.stages / problem.pipeline;
  plan.zero.level = arrangement.zero;
  plan.structure = space.structure();
  const Schedule schedule =
      lower::make_schedule(arrangement.schedule, problem.pipeline, m, plan.chunks);
  for (const auto& ranks : schedule.placement) {
    std::vector<int>& of = plan.stage_devices.emplace_back(at(width));
    std::iota(of.begin(), of.end(), ranks[0] * width);
  }
  for (const graph::Node& node : problem.graph->nodes)
    plan.ops.push_back({{node.module, node.op, node.ordinal}, {{-1, 0, width}}, {}});
  for (size_t i = 0; i < space.sequence().size(); ++i) {
    const Step& step = space.steps()[at(space.sequence()[i])];
    if (step.kind < 0) continue;
    const Candidate& c = space.kinds()[at(step.kind)].candidates[arrangement.candidates[i]];
    if (c.input >= 0) plan.ops[at(space.nodes()[i])].cuts[0] = {c.input, c.dim, width};
  }
  int stage = 0;
  for (size_t n = 0; n < plan.ops.size(); ++n) {
    while (at(stage) < arrangement.begins.size() &&
           static_cast<int>(n) >= space.nodes()[arrangement.begins[at(stage)]])
      ++stage;
    plan.ops[n].stage = stage;
    plan.ops[n].devices = plan.stage_devices[at(stage)];
  }
  int group = 0;
  for (const auto& block : again(space, arrangement)) {
    for (size_t place : block) plan.ops[at(space.nodes()[place])].recompute = group;
    ++group;
  }
  return plan;
}

Table::Table(const Space& space, const std::vector<uint8_t>& candidates, const Trace& trace)
    : space_(space), sums_(1) {
  const auto& live = space.live();
  const Problem& problem = space.problem();
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    const Added& step = trace.steps[i];
    Stage sum = sums_.back();
    sum.forward += step.forward;
    sum.backward += step.micro - step.forward;
    sum.gathers += step.gathers;
    sum.once += step.seconds - problem.settings.micro_batches * step.micro;
    sum.resting += step.resting;
    sum.saved += step.saved;
    sums_.push_back(sum);
    double seconds = 0;
    int64_t entering = 0;
    for (size_t k = 0; k < live[i].size(); ++k) {
      const Live& l = live[i][k];
      if (l.leaf >= 0) continue;
      const int64_t bytes = space.local_bytes(l.type, trace.before[i].entries[k].made);
      entering += bytes;
      const bool across = problem.width() >= problem.on.links.devices_per_node;
      seconds += (l.requires_grad ? 2 : 1) * cost::seconds_of(bytes, 1, across, problem.on.links);
    }
    message_.push_back(seconds);
    entering_.push_back(entering);
    int64_t top = 0;
    if (const int number = space.sequence()[i]; space.steps()[at(number)].kind >= 0) {
      const CallPiece& piece = space.piece(number, candidates[i], 0);
      top = std::max(piece.forward_top, piece.backward_top);
    }
    top_.push_back(top);
  }
}

Table::Stage Table::stage(size_t begin, size_t end) const {
  const Stage &a = sums_[begin], &b = sums_[end];
  return {b.forward - a.forward, b.backward - a.backward, b.gathers - a.gathers,
          b.once - a.once,       b.resting - a.resting,   b.saved - a.saved};
}

std::vector<size_t> Table::places(const std::vector<int>& only) const {
  std::vector<size_t> out;
  for (size_t i = 1; i < size(); ++i) {
    const int node = space_.nodes()[i];
    if (node >= 0 && (only.empty() || std::binary_search(only.begin(), only.end(), node)))
      out.push_back(i);
  }
  return out;
}

std::vector<size_t> Table::cheapest(const std::vector<size_t>& places, size_t stages) const {
  const size_t near = places.size() / (4 * stages) + 1;
  std::vector<size_t> out;
  std::deque<size_t> least;  // of those near: ascending in place and in seconds
  const auto seconds = [&](size_t i) { return message_[places[i]]; };
  for (size_t i = 0, next = 0; i < places.size(); ++i) {
    for (; next < places.size() && next <= i + near; ++next) {
      while (!least.empty() && seconds(least.back()) >= seconds(next)) least.pop_back();
      least.push_back(next);
    }
    while (least.front() + near < i) least.pop_front();
    if (seconds(i) <= 1.5 * seconds(least.front())) out.push_back(places[i]);
  }
  return out;
}

namespace {

// Seconds of what runs again of a block: calls that backward reads from, and those before them.
double again_seconds(const Table& table, const Arrangement& arrangement,
                     const std::vector<size_t>& block) {
  const Space& space = table.space();
  std::set<int> wanted;  // nodes
  double sum = 0;
  for (size_t k = block.size(); k-- > 0;) {
    const size_t place = block[k];
    const int number = space.sequence()[place];
    if (space.steps()[at(number)].kind < 0) continue;
    const graph::Node& node = space.problem().graph->nodes[at(space.nodes()[place])];
    const CallPiece& piece = space.piece(number, arrangement.candidates[place], 0);
    const bool runs = wanted.contains(node.id) || piece.kept > 0 ||
                      std::any_of(piece.roots.begin(), piece.roots.end(),
                                  [](const CallPiece::Root& root) { return root.kept; });
    const auto inputs = graph::inputs_of(node);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int producer = space.problem().graph->value({inputs[i]}).producer;
      if (producer >= 0 && (runs || piece.reads[i])) wanted.insert(producer);
    }
    if (!runs) continue;
    const Table::Stage step = table.stage(place, place + 1);
    sum += step.forward - step.gathers;  // backward shares these
  }
  return sum;
}

// Bytes of what a stage keeps of a micro-batch, and the most that it has of one in backward, when
// blocks run again and the call that needs most runs.
struct Kept {
  int64_t saved = 0, most = 0;
};
Kept kept_of(const Table& table, size_t begin, size_t end,
             const std::vector<std::vector<size_t>>& blocks) {
  Kept out;
  auto block = std::find_if(blocks.begin(), blocks.end(),
                            [&](const auto& places) { return places[0] >= begin; });
  for (size_t i = begin; i < end; ++i) {
    const bool again = block != blocks.end() && (*block)[0] == i;
    const size_t stop = again ? block->back() + 1 : i + 1;
    int64_t inside = 0;  // of a block, when its backward runs
    if (again) out.saved += table.entering(i);
    for (; i < stop; ++i) {
      inside += table.stage(i, i + 1).saved;
      out.most = std::max(out.most, out.saved + inside + table.top(i));
    }
    --i;
    if (again)
      ++block;
    else
      out.saved += inside;
  }
  return out;
}

// The most that a rank has of its micro-batches. Between the halves of a backward that is split
// there are gradients and what they are multiplied with: a quarter of what forward keeps, and more.
int64_t most_of(const Schedule& schedule, size_t rank, const std::vector<Kept>& kept) {
  int64_t now = 0, most = 0;
  for (const lower::Action& action : schedule.orders[rank]) {
    const Kept& of = kept[at(action.stage)];
    const int64_t waits = schedule.split_backward ? of.saved / 4 : 0;
    if (action.kind == 'F') now += of.saved;
    if (action.kind == 'B') {
      most = std::max(most, now + of.most - of.saved);
      now -= of.saved - waits;
    }
    if (action.kind == 'W') now -= waits;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

Estimate estimate(const Table& table, const Arrangement& arrangement, const Schedule& schedule) {
  const int m = schedule.micros;
  const auto stages = ranges(table.size(), arrangement.begins);
  std::vector<lower::StageTimes> times;
  std::vector<double> once(at(schedule.ranks)), busy(at(schedule.ranks));
  std::vector<int64_t> resting(at(schedule.ranks));
  std::vector<Kept> kept;
  const auto blocks = again(table.space(), arrangement);
  std::vector<double> twice(stages.size());  // seconds of what runs again
  for (const auto& block : blocks) {
    size_t s = 0;
    while (block[0] >= stages[s].second) ++s;
    twice[s] += again_seconds(table, arrangement, block);
  }
  double shortest = std::numeric_limits<double>::max(), longest = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto [begin, end] = stages[s];
    const Table::Stage stage = table.stage(begin, end);
    double sent = begin > 0 ? table.message(begin) / 2 : 0;
    sent += end < table.size() ? table.message(end) / 2 : 0;
    const double weight = schedule.split_backward ? stage.backward / 2 : 0;
    times.push_back(
        {stage.forward + sent / 2, twice[s] + stage.backward - weight + sent / 2, weight});
    const size_t rank = at(schedule.rank_of(static_cast<int>(s), 0));
    once[rank] += stage.once;
    kept.push_back(kept_of(table, begin, end, blocks));
    resting[rank] += stage.resting;
    const double all = times[s].forward + times[s].backward + times[s].weight;
    busy[rank] += m * all;
    shortest = std::min(shortest, all);
    longest = std::max(longest, all);
  }
  double last = 0;
  if (stages.size() == 1) {
    last = busy[0];
  } else {
    for (const auto& line : lower::time_line(schedule, times))
      for (const lower::Timed& t : line) last = std::max(last, t.stop);
  }
  Estimate out;
  out.seconds = last + *std::max_element(once.begin(), once.end());
  if (stages.size() == 1) {
    out.bytes = resting[0] + kept[0].most;
  } else {
    for (size_t rank = 0; rank < resting.size(); ++rank)
      out.bytes = std::max(out.bytes, resting[rank] + most_of(schedule, rank, kept));
  }
  out.bubble = last > 0 ? 1 - std::accumulate(busy.begin(), busy.end(), 0.0) /
                                  (last * static_cast<double>(schedule.ranks))
                        : 0;
  out.balance = longest > 0 ? shortest / longest : 1;
  return out;
}

}  // namespace nns::solve
