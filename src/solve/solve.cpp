#include "solve/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "lower/fold.h"

namespace nns::solve {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// "1.25 GiB", "98.8 KiB"
std::string amount(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes >= 10 << 20) return fmt::format("{:.2f} GiB", gib(bytes));
  return bytes >= 1 << 20 ? fmt::format("{:.1f} MiB", b / (1 << 20))
                          : fmt::format("{:.1f} KiB", b / (1 << 10));
}

// A whole plan that may be taken, and what it leads to. Which there are does not depend on the
// limit of memory, so a larger limit never finds less.
struct Node {
  std::shared_ptr<const Space> space;
  size_t cuts = 0;  // in Planner's list
  Arrangement arrangement;
  Estimate estimate;
  bool undivided = true;                            // its stages are divided by time alone
  std::optional<std::vector<size_t>> further = {};  // nodes with fewer bytes, once made
  std::optional<std::vector<size_t>> again = {};    // … those where more blocks run again
};

// Cuts of all calls, and what they cost at each level of shards.
struct Cuts {
  std::shared_ptr<const Space> space;
  std::vector<uint8_t> candidates;
  bool proved = false;  // no plan of one stage with whole weights is as fast and as small
  std::vector<std::optional<Table>> tables;
};

}  // namespace

std::vector<int> pipelines(const Problem& problem, const Choices& choices) {
  std::vector<int> out;
  for (int ranks = 1; ranks <= problem.plan_ngpus; ++ranks) {
    const bool any = choices.pipeline == 0;
    if (any ? problem.plan_ngpus % ranks != 0 : ranks != choices.pipeline) continue;
    if (any && choices.most_width > 0 && problem.plan_ngpus / ranks > choices.most_width) continue;
    if (ranks == 1 || problem.graph->training) out.push_back(ranks);
  }
  return out;
}

std::vector<int> levels(const Problem& problem, const Choices& choices) {
  if (choices.zero) return {*choices.zero};
  if (problem.units() == 1 || !problem.graph->training) return {plan::Zero::none};
  return {plan::Zero::none, plan::Zero::slots, plan::Zero::gradients, plan::Zero::weights};
}

class Planner::Impl {
 public:
  Impl(const Problem& problem, const Choices& choices, const std::string& policy)
      : problem_(problem), choices_(choices), policy_(policy), fold_(problem.graph) {
    for (int ranks : pipelines(problem_, choices_)) add_pipeline(ranks);
  }

  Solution within(std::optional<int64_t> memory) {
    memory_ = memory;
    best_.reset();
    tried_.clear();
    passed_.clear();
    out_ = Solution{};
    out_.fastest = fastest_;
    if (nodes_.empty()) refuse_choices();
    queue_ = {};
    seen_.assign(nodes_.size(), false);
    smaller_.clear();
    for (size_t root : roots_) push(root);
    while (!queue_.empty()) {
      const auto [seconds, n] = queue_.top();
      queue_.pop();
      if (best_ && seconds * (1 - kOff) >= out_.cost.seconds) break;
      visit(n);
    }
    if (!best_) try_smallest();
    if (!best_) too_small();
    return finish();
  }

 private:
  // How far an estimate may be above what the simulator says.
  static constexpr double kOff = 0.02;

  void lap(double& sum) {
    const double before = std::exchange(start_, now());
    sum += start_ - before;
  }

  std::vector<int> levels() const { return solve::levels(problem_, choices_); }

  // The fastest cuts of a pipeline's stages, at each level.
  void add_pipeline(int ranks) {
    Problem problem = problem_;
    problem.pipeline = ranks;
    start_ = now();
    const auto space = std::make_shared<const Space>(problem);
    lap(statistics_.space_seconds);
    for (const int zero : levels()) {
      const auto free = search(*space, {.zero = zero});
      NNS_CHECK(free, "a graph without plan");
      note(*space, *free);
      // Ranks share a step at best evenly: no plan of cuts of this width is faster.
      const double least = free->exact ? free->seconds / ranks : 0;
      fastest_ = fastest_ < 0 ? least : std::min(fastest_, least);
      for (size_t n : add_cuts(space, free->candidates, free->exact && zero == plan::Zero::none))
        roots_.push_back(n);
    }
    lap(statistics_.search_seconds);
  }

  void note(const Space& space, const Found& found) {
    Statistics& s = statistics_;
    s.labels += found.labels;
    s.frontiers = std::max(s.frontiers, found.frontiers);
    s.calls = space.sequence().size() - 1;
    s.kinds = space.kinds().size();
    s.segments = space.segments().size();
    s.steps = space.steps().size();
    s.candidates = 0;
    for (const Kind& kind : space.kinds()) s.candidates += kind.candidates.size();
    if (contributors_.empty()) contributors_ = contributors(space);
    const int64_t least =
        least_resting(space, levels().back()) / std::max(1, space.problem().pipeline);
    least_resting_ = least_resting_ == 0 ? least : std::min(least_resting_, least);
  }

  // Nodes of cuts that are not known yet, each under every schedule and level.
  std::vector<size_t> add_cuts(const std::shared_ptr<const Space>& space,
                               const std::vector<uint8_t>& candidates, bool proved) {
    const int ranks = space->problem().pipeline, m = problem_.settings.micro_batches;
    if (!known_cuts_.insert({ranks, candidates}).second) return {};
    std::vector<size_t> out;
    const size_t number = cuts_.size();
    cuts_.push_back({space, candidates, proved, {}});
    for (const int zero : levels()) {
      const auto traced = trace(*space, candidates, zero);
      NNS_CHECK(traced, "the plan that was found has no homes");
      cuts_.back().tables.emplace_back(Table(*space, candidates, *traced));
    }
    std::vector<std::pair<std::string, int>> schedules{{"1f1b", 1}};
    if (ranks > 1) {
      if (choices_.schedule.empty())
        schedules = {{"1f1b", 1}, {"1f1b_interleaved", 2}, {"zb_h1", 1}};
      else
        schedules = {{choices_.schedule, choices_.schedule == "1f1b_interleaved" ? 2 : 1}};
    }
    for (const auto& [name, chunks] : schedules) {
      if (choices_.schedule.empty() && chunks > 1 && m % ranks != 0) continue;
      const lower::Schedule& schedule = schedule_of(name, ranks, chunks);
      for (size_t level = 0; level < levels().size(); ++level) {
        Node node{space, number, {candidates, {}, name, chunks, levels()[level], 0}, {}};
        if (ranks > 1) {
          const Table& table = *cuts_[number].tables[level];
          auto begins = divide(table, schedule, places_of(number), std::nullopt);
          if (!begins) continue;
          node.arrangement.begins = std::move(*begins);
        }
        if (const auto n = add_node(std::move(node))) out.push_back(*n);
      }
    }
    return out;
  }

  const lower::Schedule& schedule_of(const std::string& name, int ranks, int chunks) {
    const auto [place, fresh] = schedules_.try_emplace({name, ranks, chunks});
    if (fresh)
      place->second = lower::make_schedule(name, ranks, problem_.settings.micro_batches, chunks);
    return place->second;
  }

  const lower::Schedule& schedule_of(const Node& node) {
    return schedule_of(node.arrangement.schedule, node.space->problem().pipeline,
                       node.arrangement.chunks);
  }

  std::vector<size_t> places_of(size_t cuts) const {
    return cuts_[cuts].tables[0]->places(choices_.begins);
  }

  const Table& table_of(const Node& node) const {
    const auto all = levels();
    const auto level = std::find(all.begin(), all.end(), node.arrangement.zero) - all.begin();
    return *cuts_[node.cuts].tables[static_cast<size_t>(level)];
  }

  // Nothing where it is known, or waits too long.
  std::optional<size_t> add_node(Node node) {
    if (!known_nodes_.insert({node.space->problem().pipeline, node.arrangement}).second)
      return std::nullopt;
    node.estimate = estimate(table_of(node), node.arrangement, schedule_of(node));
    ++statistics_.arranged;
    if (node.estimate.bubble > choices_.most_bubble) return std::nullopt;
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }

  void push(size_t n) {
    if (seen_.size() < nodes_.size()) seen_.resize(nodes_.size(), false);
    if (seen_[n]) return;
    seen_[n] = true;
    queue_.push({nodes_[n].estimate.seconds, n});
  }

  // Simulates a node that may keep the limit, and goes on to those that it leads to: in a pipeline
  // always, since stages divided in another way may be faster, else where it does not keep it.
  void visit(size_t n) {
    passed_.push_back(n);
    bool keeps = false;
    if (!memory_ || nodes_[n].estimate.bytes <= *memory_) keeps = take(n);
    const int ranks = nodes_[n].space->problem().pipeline;
    if (ranks > 1)
      for (size_t next : divided(n)) push(next);
    if (keeps) return;
    for (size_t next : with_more_again(n)) push(next);
    if (smaller_.insert(ranks).second)
      for (size_t next : smaller(n)) push(next);
  }

  // The same cuts in stages that hold less.
  std::vector<size_t> divided(size_t n) {
    if (nodes_[n].further) return *nodes_[n].further;
    std::vector<size_t> out;
    if (nodes_[n].undivided && nodes_[n].arrangement.recompute == 0) {
      const lower::Schedule& schedule = schedule_of(nodes_[n]);
      const auto places = places_of(nodes_[n].cuts);
      const Estimate free = nodes_[n].estimate;
      for (const double part : {0.9, 0.8, 0.7, 0.6, 0.5}) {
        Node node{nodes_[n].space, nodes_[n].cuts, nodes_[n].arrangement, {}, false};
        auto begins = divide(table_of(node), schedule, places,
                             static_cast<int64_t>(part * static_cast<double>(free.bytes)));
        if (!begins) break;
        node.arrangement.begins = std::move(*begins);
        if (const auto made = add_node(std::move(node))) out.push_back(*made);
      }
    }
    nodes_[n].further = out;
    return out;
  }

  // The same with some more blocks that run again in backward.
  std::vector<size_t> with_more_again(size_t n) {
    if (nodes_[n].again) return *nodes_[n].again;
    std::vector<size_t> out;
    if (choices_.recompute && problem_.graph->training && nodes_[n].arrangement.recompute < 1) {
      constexpr double kParts = 8;
      Node node{nodes_[n].space, nodes_[n].cuts, nodes_[n].arrangement, {}, nodes_[n].undivided};
      const auto blocks = [&] { return solve::again(*node.space, node.arrangement).size(); };
      const size_t before = blocks();
      do node.arrangement.recompute += 1 / kParts;
      while (node.arrangement.recompute < 1 && blocks() == before);
      if (const auto made = add_node(std::move(node))) out.push_back(*made);
    }
    nodes_[n].again = out;
    return out;
  }

  // Cuts of the same stages that hold less: in one stage all that no others beat, where these are
  // not too many, and the best at several prices of a byte.
  std::vector<size_t> smaller(size_t of) {
    const auto space = nodes_[of].space;
    const int ranks = space->problem().pipeline;
    const auto [known, fresh] = of_ranks_.try_emplace(ranks);
    if (!fresh) return known->second;
    constexpr size_t kLabels = 20'000;
    std::vector<size_t> out;
    const auto add = [&](const std::vector<uint8_t>& candidates, bool proved) {
      for (size_t n : add_cuts(space, candidates, proved)) out.push_back(n);
    };
    start_ = now();
    if (ranks == 1) {
      const auto all = search_all(*space, {.memory = std::numeric_limits<int64_t>::max() / 4,
                                           .zero = levels()[0],
                                           .labels = kLabels,
                                           .exact = true});
      for (const Found& found : all) add(found.candidates, levels()[0] == plan::Zero::none);
      if (!all.empty()) note(*space, all[0]);
    }
    const auto free = std::find_if(cuts_.begin(), cuts_.end(),
                                   [&](const Cuts& cuts) { return cuts.space == space; });
    const auto priced = price(*space, free->candidates, levels()[0]);
    NNS_CHECK(priced, "the plan that was found has no homes");
    const double unit = priced->seconds /
                        static_cast<double>(std::max<int64_t>(1, priced->resting + priced->saved));
    for (const int zero : std::set<int>{levels().front(), levels().back()})
      for (const double power : {-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0})
        if (auto found = search(*space, {.price = unit * std::pow(10.0, power), .zero = zero})) {
          note(*space, *found);
          add(found->candidates, false);
        }
    // What a micro-batch keeps makes frontiers many; a narrow search finds nearly as small plans.
    if (ranks == 1)
      if (auto found = search(*space, {.price = unit * 1e4,
                                       .in_flight = 1,
                                       .zero = levels().front(),
                                       .labels = 2000,
                                       .beam = 8})) {
        note(*space, *found);
        add(found->candidates, false);
      }
    lap(statistics_.search_seconds);
    of_ranks_[ranks] = out;
    return out;
  }

  struct Simulated {
    plan::Plan plan;
    lower::StepCost cost;
  };
  const Simulated& simulate(size_t n) {
    const auto [known, fresh] = simulated_.try_emplace(n);
    if (!fresh) return *known->second;
    start_ = now();
    lower::Options options;
    options.device = problem_.device;
    options.set_bytes = problem_.settings.bucket_bytes;
    known->second = std::make_unique<Simulated>();
    Simulated& made = *known->second;
    made.plan = plan_of(*nodes_[n].space, nodes_[n].arrangement, policy_);
    made.cost = fold_.simulate(made.plan, options, problem_.on, problem_.settings);
    lap(statistics_.check_seconds);
    return made;
  }

  // Takes the plan of a node where it is the best so far; whether it keeps the limit.
  bool take(size_t n) {
    const Simulated& made = simulate(n);
    tried_.push_back(n);
    const lower::StepCost& cost = made.cost;
    const bool keeps = !memory_ || cost.total <= *memory_;
    if (!keeps || (best_ && cost.seconds >= out_.cost.seconds)) return keeps;
    best_ = n;
    out_.plan = made.plan;
    out_.cost = cost;
    return keeps;
  }

  // Where no estimate kept the limit, or its peak did not: those that hold least.
  void try_smallest() {
    constexpr size_t kMost = 8;
    std::vector<size_t> order = passed_;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return nodes_[a].estimate.bytes < nodes_[b].estimate.bytes;
    });
    if (order.size() > kMost) order.resize(kMost);
    for (size_t n : order)
      if (std::find(tried_.begin(), tried_.end(), n) == tried_.end()) take(n);
  }

  Solution finish() {
    const Node& best = nodes_[*best_];
    out_.arranged = describe(*best.space, best.arrangement);
    out_.searched = best.estimate.seconds;
    if (cuts_[best.cuts].proved && choices_.pipeline == 1 && best.arrangement.recompute == 0 &&
        best.arrangement.zero == plan::Zero::none) {
      out_.exact = true;
    } else {
      // Beside what the search's costs say of this plan, where that is more than the simulator
      // says.
      out_.gap = std::max(0.0, 1 - out_.fastest / std::max(out_.searched, out_.cost.seconds));
      out_.exact = out_.gap == 0;
    }
    fill_report();
    for (Tried& t : out_.report.tried) {
      if (t.chosen) continue;
      if (memory_ && t.peak > *memory_)
        t.why = fmt::format("memory: {} of {}", amount(t.peak), amount(*memory_));
      else
        t.why = fmt::format("time: {:+.1f} %", 100 * (t.seconds / out_.cost.seconds - 1));
    }
    for (size_t n : passed_)
      out_.bound = out_.bound ||
                   (memory_ && nodes_[n].estimate.seconds < out_.cost.seconds &&
                    (nodes_[n].estimate.bytes > *memory_ || simulate(n).cost.total > *memory_));
    if (choices_.report) out_.report.choices = choices(*best.space, best.arrangement);
    return std::move(out_);
  }

  void fill_report() {
    out_.report.statistics = statistics_;
    out_.report.statistics.simulated = tried_.size();
    out_.report.contributors = contributors_;
    out_.report.least_resting = least_resting_;
    for (size_t n : tried_) {
      const lower::StepCost& cost = simulate(n).cost;
      out_.report.tried.push_back({describe(*nodes_[n].space, nodes_[n].arrangement), cost.seconds,
                                   cost.total, best_ == n, ""});
    }
  }

  [[noreturn]] void refuse_choices() const {
    throw Error(ErrorKind::plan,
                fmt::format("[solve.pipeline] no pipeline of {} device(s) with {} micro-batches is "
                            "as asked: {} pipeline rank(s), schedule '{}'",
                            problem_.plan_ngpus, problem_.settings.micro_batches, choices_.pipeline,
                            choices_.schedule.empty() ? "any" : choices_.schedule),
                "fewer stages (pas_config.pipeline_nstages), more pivots, or a larger "
                "max_pipeline_bubble_ratio");
  }

  [[noreturn]] void too_small() {
    fill_report();
    const auto& tried = out_.report.tried;
    const auto least = std::min_element(tried.begin(), tried.end(),
                                        [](auto& a, auto& b) { return a.peak < b.peak; });
    std::string most;
    for (size_t i = 0; i < out_.report.contributors.size() && i < 3; ++i) {
      const Contributor& c = out_.report.contributors[i];
      most += fmt::format("{}{} {}", i == 0 ? "" : ", ", c.name, amount(c.bytes));
    }
    // Only what rests is known of all plans.
    const bool proved = *memory_ < out_.report.least_resting;
    // Enough of six digits to be no less.
    const double enough = std::ceil(gib(least->peak) * 1e6) / 1e6;
    throw Error(
        ErrorKind::plan,
        fmt::format("[solve.memory] no plan of {} device(s) {} {} a device; weights, gradients and "
                    "optimizer state take {} at least (of each whole weight: {}); the smallest "
                    "that was found takes {}: {}",
                    problem_.plan_ngpus, proved ? "keeps" : "was found that keeps",
                    amount(*memory_), amount(out_.report.least_resting), most, amount(least->peak),
                    least->what),
        fmt::format("more devices (compute_config.plan_ngpus), smaller micro-batches, or a larger "
                    "pas_config.mem_constraint: {} is enough for that one",
                    least->peak >= 1 << 30 ? std::ceil(gib(least->peak) * 100) / 100 : enough));
  }

  const Problem problem_;
  const Choices choices_;
  const std::string policy_;
  const lower::Fold fold_;
  double start_ = 0;
  Statistics statistics_;
  std::vector<Contributor> contributors_;
  int64_t least_resting_ = 0;
  double fastest_ = -1;  // none yet
  std::vector<Cuts> cuts_;
  std::vector<Node> nodes_;
  std::vector<size_t> roots_;
  std::set<std::pair<int, std::vector<uint8_t>>> known_cuts_;
  std::set<std::pair<int, Arrangement>> known_nodes_;
  std::map<std::tuple<std::string, int, int>, lower::Schedule> schedules_;
  std::map<int, std::vector<size_t>> of_ranks_;  // nodes of smaller cuts
  std::map<size_t, std::unique_ptr<Simulated>> simulated_;
  // Of one limit:
  std::optional<int64_t> memory_;
  Solution out_;
  std::optional<size_t> best_;
  std::vector<size_t> tried_, passed_;
  std::vector<bool> seen_;
  std::set<int> smaller_;  // pipeline ranks whose smaller cuts are in the queue
  using Place = std::pair<double, size_t>;
  std::priority_queue<Place, std::vector<Place>, std::greater<>> queue_;
};

Planner::Planner(const Problem& problem, const Choices& choices, const std::string& policy)
    : impl_(std::make_unique<Impl>(problem, choices, policy)) {}
Planner::~Planner() = default;

Solution Planner::within(std::optional<int64_t> memory) {
  return impl_->within(memory);
}

Solution solve(const Problem& problem, std::optional<int64_t> memory, const Choices& choices,
               const std::string& policy) {
  return Planner(problem, choices, policy).within(memory);
}

}  // namespace nns::solve
