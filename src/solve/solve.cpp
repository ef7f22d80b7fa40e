#include "solve/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <set>
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

// One whole plan that may be taken.
struct Variant {
  std::shared_ptr<const Space> space;
  Arrangement arrangement;
  Estimate estimate;
};

class Solver {
 public:
  Solver(const Problem& problem, std::optional<int64_t> memory, const Choices& choices,
         const std::string& policy)
      : problem_(problem),
        memory_(memory),
        choices_(choices),
        policy_(policy),
        fold_(problem.graph) {}

  Solution run() {
    for (int ranks = 1; ranks <= problem_.plan_ngpus; ++ranks)
      if (allowed(ranks)) add_pipeline(ranks);
    if (variants_.empty() && !best_) refuse_choices();
    std::stable_sort(variants_.begin(), variants_.end(), [](const Variant& a, const Variant& b) {
      return a.estimate.seconds < b.estimate.seconds;
    });
    constexpr size_t kMost = 12, kMostInVain = 24;
    size_t after = 0, in_vain = 0;
    for (const Variant& v : variants_) {
      const auto extra = extra_.find(v.space->problem().pipeline);
      const int64_t more = extra == extra_.end() ? 0 : extra->second;
      if (memory_ && v.estimate.bytes + more > *memory_) continue;
      if (best_ && (after++ >= kMost || v.estimate.seconds >= out_.cost.seconds)) break;
      if (!best_ && in_vain++ >= kMostInVain) break;
      simulate(v);
    }
    if (!best_) try_smallest();
    if (!best_) too_small();
    return finish();
  }

 private:
  void lap(double& sum) {
    const double before = std::exchange(start_, now());
    sum += start_ - before;
  }
  Statistics& statistics() { return out_.report.statistics; }

  bool allowed(int ranks) const {
    if (choices_.pipeline != 0 ? ranks != choices_.pipeline : problem_.plan_ngpus % ranks != 0)
      return false;
    if (choices_.pipeline == 0 && choices_.most_width > 0 &&
        problem_.plan_ngpus / ranks > choices_.most_width)
      return false;
    return ranks == 1 || problem_.graph->training;
  }

  std::vector<int> levels() const {
    if (choices_.zero) return {*choices_.zero};
    if (problem_.units() == 1 || !problem_.graph->training) return {plan::Zero::none};
    return {plan::Zero::none, plan::Zero::slots, plan::Zero::gradients, plan::Zero::weights};
  }

  void add_pipeline(int ranks) {
    Problem problem = problem_;
    problem.pipeline = ranks;
    start_ = now();
    const auto space = std::make_shared<const Space>(problem);
    lap(statistics().space_seconds);
    std::vector<Found> cuts;
    for (const int zero : levels()) {
      const auto free = search(*space, {.zero = zero});
      NNS_CHECK(free, "a graph without plan");
      lap(statistics().search_seconds);
      note(*space, *free);
      cuts.push_back(*free);
      // Ranks share a step at best evenly: no plan of cuts of this width is faster.
      const double least = free->seconds / ranks;
      out_.fastest = out_.fastest > 0 ? std::min(out_.fastest, least) : least;
      if (ranks == 1) simulate_found(space, *free, zero);
    }
    if (ranks == 1 && !best_) add_smaller(space, cuts[0], cuts);
    add_priced(*space, cuts[0], cuts);
    std::set<std::vector<uint8_t>> known;
    for (const Found& found : cuts)
      if (known.insert(found.candidates).second) add_variants(space, found);
    lap(statistics().search_seconds);
  }

  void note(const Space& space, const Found& found) {
    Statistics& s = statistics();
    s.labels += found.labels;
    s.frontiers = std::max(s.frontiers, found.frontiers);
    s.calls = space.sequence().size() - 1;
    s.kinds = space.kinds().size();
    s.segments = space.segments().size();
    s.steps = space.steps().size();
    s.candidates = 0;
    for (const Kind& kind : space.kinds()) s.candidates += kind.candidates.size();
    if (out_.report.contributors.empty()) out_.report.contributors = contributors(space);
    const int64_t least =
        least_resting(space, levels().back()) / std::max(1, space.problem().pipeline);
    int64_t& known = out_.report.least_resting;
    known = known == 0 ? least : std::min(known, least);
  }

  // A plan of one stage as the search found it; returns its peak.
  int64_t simulate_found(const std::shared_ptr<const Space>& space, const Found& found, int zero) {
    Variant v{space, {found.candidates}, {found.seconds, 0}};
    v.arrangement.zero = zero;
    const bool was = best_.has_value();
    const int64_t peak = simulate(v);
    if (!was && best_ && zero == plan::Zero::none) exact_ = found;
    return peak;
  }

  // Cuts that keep the limit with whole weights: exact where that is not too long.
  void add_smaller(const std::shared_ptr<const Space>& space, const Found& free,
                   std::vector<Found>& cuts) {
    constexpr int kTries = 6;
    constexpr size_t kLabels = 20'000;
    const int zero = levels()[0];
    Found found = free;
    int64_t limit = *memory_, peak = simulate_found(space, found, zero);
    for (int tries = 0; tries < kTries && !best_; ++tries) {
      // The next plan has to keep less by as much as the peak was too high.
      const auto priced = price(*space, found.candidates, zero);
      NNS_CHECK(priced, "the plan that was found has no homes");
      limit = std::min(limit, priced->resting + priced->saved - (peak - *memory_));
      if (least_resting(*space, zero) > limit) break;
      const auto next =
          search(*space, {.memory = limit, .zero = zero, .labels = kLabels, .exact = true});
      lap(statistics().search_seconds);
      if (!next) break;
      note(*space, *next);
      found = *next;
      cuts.push_back(found);
      peak = simulate_found(space, found, zero);
    }
  }

  // Cuts at several prices of a byte, with weights as little and as much in shards as may be.
  void add_priced(const Space& space, const Found& free, std::vector<Found>& cuts) {
    const auto priced = price(space, free.candidates, levels()[0]);
    NNS_CHECK(priced, "the plan that was found has no homes");
    const double unit =
        free.seconds / static_cast<double>(std::max<int64_t>(1, priced->resting + priced->saved));
    for (const int zero : std::set<int>{levels().front(), levels().back()})
      for (const double power : {-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0})
        if (auto found = search(space, {.price = unit * std::pow(10.0, power), .zero = zero})) {
          note(space, *found);
          cuts.push_back(std::move(*found));
        }
  }

  void add_variants(const std::shared_ptr<const Space>& space, const Found& found) {
    const int ranks = space->problem().pipeline, m = problem_.settings.micro_batches;
    std::vector<Table> tables;
    for (const int zero : levels()) {
      const auto traced = trace(*space, found.candidates, zero);
      NNS_CHECK(traced, "the plan that was found has no homes");
      tables.emplace_back(*space, *traced);
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
      const lower::Schedule schedule = lower::make_schedule(name, ranks, m, chunks);
      const auto places = tables[0].places(static_cast<size_t>(schedule.stages), choices_.begins);
      for (size_t level = 0; level < tables.size(); ++level) {
        const Table& table = tables[level];
        const int zero = levels()[level];
        for (const double recompute : {0.0, 0.25, 0.5, 0.75, 1.0}) {
          if (recompute > 0 && !(memory_ && choices_.recompute && problem_.graph->training)) break;
          Arrangement a{found.candidates, {}, name, chunks, zero, recompute};
          auto begins = divide(table, a, schedule, places, memory_);
          if (!begins && ranks > 1) begins = divide(table, a, schedule, places, {});
          if (begins) a.begins = std::move(*begins);
          if (schedule.stages != static_cast<int>(a.begins.size()) + 1) continue;
          const Estimate e = estimate(table, a, schedule);
          ++statistics().arranged;
          const bool ample = memory_ && 4 * e.bytes <= 3 * *memory_;
          if (e.bubble <= choices_.most_bubble) variants_.push_back({space, std::move(a), e});
          if (ample) break;  // running more again would only take longer
        }
      }
    }
  }

  // Lowers and simulates; takes the plan where it is the best so far. Returns its peak.
  int64_t simulate(const Variant& v) {
    const auto [known, fresh] =
        known_.try_emplace({v.space->problem().pipeline, v.arrangement}, int64_t{0});
    if (!fresh) return known->second;
    start_ = now();
    lower::Options options;
    options.device = problem_.device;
    options.set_bytes = problem_.settings.bucket_bytes;
    plan::Plan plan = plan_of(*v.space, v.arrangement, policy_);
    const lower::StepCost cost = fold_.simulate(plan, options, problem_.on, problem_.settings);
    lap(statistics().check_seconds);
    ++statistics().simulated;
    out_.report.tried.push_back(
        {describe(*v.space, v.arrangement), cost.seconds, cost.total, false, ""});
    known->second = cost.total;
    if (v.estimate.bytes > 0) {
      const int64_t more = std::max<int64_t>(0, cost.total - v.estimate.bytes);
      int64_t& least = extra_.try_emplace(v.space->problem().pipeline, more).first->second;
      least = std::min(least, more);
    }
    if (memory_ && cost.total > *memory_) return cost.total;
    if (best_ && cost.seconds >= out_.cost.seconds) return cost.total;
    best_ = v;
    best_tried_ = out_.report.tried.size() - 1;
    exact_.reset();
    out_.plan = std::move(plan);
    out_.cost = cost;
    return cost.total;
  }

  // Where no estimate kept the limit, or its peak did not: those that hold least.
  void try_smallest() {
    constexpr size_t kMost = 8;
    std::vector<const Variant*> order;
    for (const Variant& v : variants_) order.push_back(&v);
    std::stable_sort(order.begin(), order.end(), [](const Variant* a, const Variant* b) {
      return a->estimate.bytes < b->estimate.bytes;
    });
    if (order.size() > kMost) order.resize(kMost);
    for (const Variant* v : order) simulate(*v);
  }

  Solution finish() {
    out_.arranged = describe(*best_->space, best_->arrangement);
    out_.searched = out_.cost.seconds;
    if (exact_ && choices_.pipeline == 1) {
      out_.searched = exact_->seconds;
      out_.exact = exact_->exact;
    } else {
      out_.gap = std::max(0.0, 1 - out_.fastest / out_.cost.seconds);
      out_.exact = out_.gap == 0;
    }
    for (size_t i = 0; i < out_.report.tried.size(); ++i) {
      Tried& t = out_.report.tried[i];
      t.chosen = i == best_tried_;
      if (t.chosen) continue;
      const bool too_large = memory_ && t.peak > *memory_;
      out_.bound = out_.bound || (too_large && t.seconds < out_.cost.seconds);
      if (too_large)
        t.why = fmt::format("memory: {:.2f} GiB of {:.2f}", gib(t.peak), gib(*memory_));
      else
        t.why = fmt::format("time: {:+.1f} %", 100 * (t.seconds / out_.cost.seconds - 1));
    }
    if (choices_.report) out_.report.choices = choices(*best_->space, best_->arrangement);
    return std::move(out_);
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

  [[noreturn]] void too_small() const {
    const auto& tried = out_.report.tried;
    const auto least = std::min_element(tried.begin(), tried.end(),
                                        [](auto& a, auto& b) { return a.peak < b.peak; });
    std::string most;
    for (size_t i = 0; i < out_.report.contributors.size() && i < 3; ++i) {
      const Contributor& c = out_.report.contributors[i];
      most += fmt::format("{}{} {:.2f} GiB", i == 0 ? "" : ", ", c.name, gib(c.bytes));
    }
    throw Error(
        ErrorKind::plan,
        fmt::format("[solve.memory] no plan of {} device(s) keeps {:.2f} GiB a device; weights, "
                    "gradients and optimizer state take {:.2f} GiB at least (of each whole weight: "
                    "{}); the smallest that was found takes {:.2f} GiB: {}",
                    problem_.plan_ngpus, gib(*memory_), gib(out_.report.least_resting), most,
                    gib(least->peak), least->what),
        fmt::format("more devices (compute_config.plan_ngpus), smaller micro-batches, or a larger "
                    "pas_config.mem_constraint: {:.2f} is enough for that one",
                    std::ceil(gib(least->peak) * 100) / 100));
  }

  const Problem& problem_;
  const std::optional<int64_t> memory_;
  const Choices& choices_;
  const std::string& policy_;
  Solution out_;
  double start_ = 0;
  std::vector<Variant> variants_;
  const lower::Fold fold_;
  // Peaks of what was simulated, by pipeline ranks.
  std::map<std::pair<int, Arrangement>, int64_t> known_;
  // By pipeline ranks, the least that a peak was above its estimate: what lives inside of calls.
  std::map<int, int64_t> extra_;
  std::optional<Variant> best_;
  size_t best_tried_ = 0;
  std::optional<Found> exact_;  // where the best plan is one of the search as it stands
};

}  // namespace

Solution solve(const Problem& problem, std::optional<int64_t> memory, const Choices& choices,
               const std::string& policy) {
  return Solver(problem, memory, choices, policy).run();
}

}  // namespace nns::solve
