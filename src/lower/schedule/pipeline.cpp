#include "lower/schedule/pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/error.h"

namespace nns::lower {
namespace {

using plan::Plan;

bool holds(const std::vector<int>& devices, int device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

// Of each stage the pipeline ranks that its devices belong to, ascending.
std::vector<std::vector<int>> ranks_of_stages(const Plan& plan) {
  const auto ranks = pipeline_ranks(plan);
  std::vector<std::vector<int>> out;
  for (const auto& devices : plan.stage_devices) {
    auto& of_stage = out.emplace_back();
    for (size_t r = 0; r < ranks.size(); ++r)
      if (holds(devices, ranks[r][0])) of_stage.push_back(static_cast<int>(r));
  }
  return out;
}

// "F3" (micro-batch 3 of the rank's only stage) or "F1:3" (of stage 1).
Action parse_action(const std::string& text, const std::vector<int>& stages, size_t rank) {
  const auto broken = [&]() -> void {
    fail(
        ErrorKind::plan,
        "[lower.schedule] 'custom': rank {} runs '{}'; expected F, B or W with a micro-batch (F3), "
        "and the stage in front where a rank has several (F1:3)",
        rank, text);
  };
  const size_t colon = text.find(':');
  const auto number = [&](const std::string& digits) {
    if (digits.empty() || digits.size() > 6 ||
        !std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return isdigit(c); }))
      broken();
    return std::stoi(digits);
  };
  if (text.size() < 2 || std::string("FBW").find(text[0]) == std::string::npos ||
      (colon == std::string::npos && stages.size() != 1))
    broken();
  if (colon == std::string::npos) return {text[0], stages[0], number(text.substr(1))};
  return {text[0], number(text.substr(1, colon - 1)), number(text.substr(colon + 1))};
}

Schedule custom(const Plan& plan) {
  const auto ranks = pipeline_ranks(plan);
  Schedule s;
  s.name = "custom";
  s.ranks = static_cast<int>(ranks.size());
  s.stages = plan.stages;
  s.micros = plan.micro_batches;
  s.together = ranks_of_stages(plan);
  for (const auto& of_stage : s.together) s.placement.push_back({of_stage.front()});
  if (plan.orders.size() != ranks.size())
    fail(ErrorKind::plan,
         "[lower.schedule] 'custom': {} orders for {} pipeline ranks; expected one "
         "a rank",
         plan.orders.size(), ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<int> stages;
    for (int i = 0; i < plan.stages; ++i)
      if (holds(s.together[static_cast<size_t>(i)], static_cast<int>(r))) stages.push_back(i);
    std::istringstream words(plan.orders[r]);
    auto& order = s.orders.emplace_back();
    for (std::string word; words >> word;) order.push_back(parse_action(word, stages, r));
    for (const Action& a : order) s.split_backward = s.split_backward || a.kind == 'W';
  }
  check(s);
  return s;
}

// Throws unless every stage lies on the devices of the ranks that the schedule gives it.
void check_placement(const Plan& plan, const Schedule& s) {
  const auto ranks = pipeline_ranks(plan);
  for (int lane = 0; lane < lanes_of(plan); ++lane) {
    const Plan seen = lane_of(plan, lane);
    std::vector<int> of_rank(ranks.size(), -1);
    for (int i = 0; i < plan.stages; ++i) {
      const auto& devices = seen.stage_devices[static_cast<size_t>(i)];
      const int wanted = s.rank_of(i, lane);
      // Schedules count ranks by their first stage, as `ranks` are.
      if (pipeline_rank(plan, devices[0]) == wanted) continue;
      fail(ErrorKind::plan,
           "[lower.schedule] '{}': stage {} lies on devices {}; expected those of pipeline rank {} "
           "({})",
           s.name, i, fmt::join(devices, ","), wanted,
           fmt::join(ranks[static_cast<size_t>(wanted)], ","));
    }
  }
}

// Predefined schedules know of no stages that share some of their devices.
void check_apart(const Plan& plan) {
  const auto ranks = ranks_of_stages(plan);
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i].size() > 1)
      throw Error(ErrorKind::plan,
                  fmt::format("[lower.schedule] '{}': stage {} lies on devices {}, of which other "
                              "stages have some; expected the same devices or none in common",
                              plan.schedule, i, fmt::join(plan.stage_devices[i], ",")),
                  "order such stages by a custom schedule");
}

int chunks_of(const Plan& plan, int ranks) {
  if (plan.stages % ranks != 0)
    fail(ErrorKind::plan,
         "[lower.schedule] '{}': {} stages on {} pipeline ranks; expected equally many a rank",
         plan.schedule, plan.stages, ranks);
  return plan.stages / ranks;
}

void drop_from(Schedule& s, int micros) {
  for (auto& order : s.orders)
    std::erase_if(order, [&](const Action& a) { return a.micro >= micros; });
  s.micros = micros;
}

}  // namespace

int lanes_of(const Plan& plan) {
  return plan.schedule == "chimera" && plan.stages > 1 ? 2 : 1;
}

Plan lane_of(const Plan& plan, int lane) {
  Plan out = plan;
  if (lane == 0) return out;
  std::reverse(out.stage_devices.begin(), out.stage_devices.end());
  for (plan::OpPlan& op : out.ops) {
    const auto& from = plan.stage_devices.at(static_cast<size_t>(op.stage));
    const auto& to = out.stage_devices.at(static_cast<size_t>(op.stage));
    for (int& device : op.devices) {
      const auto at = std::find(from.begin(), from.end(), device) - from.begin();
      if (static_cast<size_t>(at) >= to.size())
        fail(ErrorKind::plan,
             "[lower.schedule] 'chimera': stage {} has {} devices, its mirror {}; expected as many",
             op.stage, from.size(), to.size());
      device = to[static_cast<size_t>(at)];
    }
  }
  return out;
}

std::vector<StagePart> parts_on(const Plan& plan, int device) {
  std::vector<StagePart> parts;
  for (int i = 0; i < plan.stages; ++i)
    for (int lane = 0; lane < lanes_of(plan); ++lane) {
      const int place = lane == 0 ? i : plan.stages - 1 - i;
      if (holds(plan.stage_devices.at(static_cast<size_t>(place)), device))
        parts.push_back({i, lane});
    }
  return parts;
}

std::vector<std::vector<int>> pipeline_ranks(const Plan& plan) {
  std::vector<std::vector<int>> ranks, stages;  // of each rank
  for (const auto& devices : plan.stage_devices)
    for (int device : devices) {
      std::vector<int> mine;
      for (int i = 0; i < plan.stages; ++i)
        if (holds(plan.stage_devices[static_cast<size_t>(i)], device)) mine.push_back(i);
      const auto known = std::find(stages.begin(), stages.end(), mine);
      if (known == stages.end()) {
        stages.push_back(std::move(mine));
        ranks.push_back({device});
      } else if (auto& rank = ranks[static_cast<size_t>(known - stages.begin())];
                 !holds(rank, device)) {
        rank.push_back(device);
      }
    }
  for (auto& rank : ranks) std::sort(rank.begin(), rank.end());
  return ranks;
}

int pipeline_rank(const Plan& plan, int device) {
  const auto ranks = pipeline_ranks(plan);
  for (size_t r = 0; r < ranks.size(); ++r)
    if (holds(ranks[r], device)) return static_cast<int>(r);
  fail(ErrorKind::plan, "[lower.schedule] device {} has no stage", device);
}

Schedule schedule_of(const Plan& plan, int micros) {
  if (plan.schedule == "custom") {
    Schedule s = custom(plan);
    if (micros > s.micros)
      fail(ErrorKind::plan, "[lower.schedule] 'custom' orders {} micro-batches; the step has {}",
           s.micros, micros);
    drop_from(s, micros);
    return s;
  }
  check_apart(plan);
  const int ranks = static_cast<int>(pipeline_ranks(plan).size());
  const int chunks = chunks_of(plan, ranks);
  const bool ring = plan.schedule == "1f1b_interleaved";
  // The end of an epoch may leave a number that the schedule cannot do with.
  int full = std::max(micros, 1);
  if (plan.schedule == "chimera") full += full % 2;
  if (ring) full = (full + ranks - 1) / ranks * ranks;
  Schedule s = make_schedule(plan.schedule, ranks, full, ring ? chunks : 1);
  if (s.stages != plan.stages)
    fail(ErrorKind::plan, "[lower.schedule] '{}': {} stages on {} pipeline ranks; expected {}",
         plan.schedule, plan.stages, ranks, s.stages);
  if (!s.training)
    fail(ErrorKind::plan, "[lower.schedule] '{}' has no backward; expected a schedule that trains",
         plan.schedule);
  check_placement(plan, s);
  if (micros == plan.micro_batches && full != micros)
    make_schedule(plan.schedule, ranks, micros, chunks);  // throws: the number is no accident
  drop_from(s, micros);
  return s;
}

bool forwards_ascend(const Schedule& schedule) {
  for (const auto& row : schedule.placement)
    if (row.size() > 1) return false;
  for (const auto& order : schedule.orders) {
    std::vector<int> last(static_cast<size_t>(schedule.stages), -1);
    for (const Action& a : order) {
      if (a.kind != 'F') continue;
      int& before = last[static_cast<size_t>(a.stage)];
      if (a.micro < before) return false;
      before = a.micro;
    }
  }
  return true;
}

Schedule inference_of(const Plan& plan, int micros) {
  const auto ranks = pipeline_ranks(plan);
  Schedule s;
  s.name = "infer";
  s.training = false;
  s.ranks = static_cast<int>(ranks.size());
  s.stages = plan.stages;
  s.micros = micros;
  s.orders.resize(ranks.size());
  for (int i = 0; i < plan.stages; ++i) {
    auto& row = s.placement.emplace_back();
    for (int lane = 0; lane < lanes_of(plan); ++lane) {
      const int place = lane == 0 ? i : plan.stages - 1 - i;
      row.push_back(pipeline_rank(plan, plan.stage_devices[static_cast<size_t>(place)][0]));
    }
  }
  // Micro-batch after micro-batch, each through the rank's stages: a send waits for nobody.
  if (lanes_of(plan) == 1) s.together = ranks_of_stages(plan);
  for (int k = 0; k < micros; ++k)
    for (int i = 0; i < plan.stages; ++i)
      for (int rank : s.ranks_of(i, k)) s.orders[static_cast<size_t>(rank)].push_back({'F', i, k});
  check(s);
  return s;
}

}  // namespace nns::lower
