#include "solve/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace nns::solve {

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

struct Difference {
  double seconds = 0;
  int64_t bytes = 0;
};

// What a plan costs more with another candidate at one place; nothing where that is no plan. It is
// followed until both plans have left the same frontier.
std::optional<Difference> change(const Space& space, const Mover& mover, const Trace& of,
                                 const Arrangement& arrangement, size_t place, size_t candidate) {
  Frontier now = of.before[place];
  Difference out;
  for (size_t i = place; i < space.sequence().size(); ++i) {
    const int number = space.sequence()[i];
    const size_t c = i == place ? candidate : arrangement.candidates[i];
    std::optional<std::pair<Frontier, Added>> next;
    for (uint32_t h = 0; h < mover.homes(number) && !next; ++h) {
      Frontier to = now;
      Added added;
      if (mover.move(number, c, h, to, added)) next.emplace(std::move(to), added);
    }
    if (!next) return std::nullopt;
    out.seconds += next->second.seconds - of.steps[i].seconds;
    out.bytes +=
        next->second.resting + next->second.saved - of.steps[i].resting - of.steps[i].saved;
    if (i == 0) {
      const Space::Rest unread = space.unread(arrangement.zero);
      out.bytes += unread.bytes;
      out.seconds += unread.seconds;
    }
    now = std::move(next->first);
    if (i + 1 < of.before.size() && now.key() == of.before[i + 1].key()) break;
  }
  return out;
}

}  // namespace

std::vector<Choice> choices(const Space& space, const Arrangement& arrangement) {
  const auto traced = trace(space, arrangement.candidates, arrangement.zero);
  NNS_CHECK(traced, "the plan that was found has no homes");
  std::set<size_t> again_places;
  for (const auto& block : again(space, arrangement))
    again_places.insert(block.begin(), block.end());
  const Mover mover(space, true, arrangement.zero);
  const int m = space.problem().settings.micro_batches;
  std::set<std::string> known;
  std::vector<Choice> out;
  int stage = 0;
  for (size_t i = 0; i < space.sequence().size(); ++i) {
    if (at(stage) < arrangement.begins.size() && i >= arrangement.begins[at(stage)]) ++stage;
    const int number = space.sequence()[i];
    const Step& step = space.steps()[at(number)];
    if (step.kind < 0) continue;
    const Kind& kind = space.kinds()[at(step.kind)];
    const size_t chosen = arrangement.candidates[i];
    const Candidate& candidate = kind.candidates[chosen];
    const Added& added = traced->steps[i];
    Choice choice{space.nodes()[i], stage,       again_places.contains(i),        candidate.input,
                  candidate.dim,    added.micro, added.seconds - m * added.micro, added.resting,
                  added.saved};
    if (known.insert(std::to_string(number) + "|" + traced->before[i].key()).second)
      for (size_t c = 0; c < kind.candidates.size(); ++c) {
        if (c == chosen) continue;
        const auto more = change(space, mover, *traced, arrangement, i, c);
        if (more)
          choice.others.push_back(
              {kind.candidates[c].input, kind.candidates[c].dim, more->seconds, more->bytes});
      }
    out.push_back(std::move(choice));
  }
  return out;
}

std::vector<Contributor> contributors(const Space& space) {
  constexpr size_t kMost = 10;
  const graph::Graph& graph = *space.problem().graph;
  std::vector<Contributor> out;
  for (int id : graph.parameters) {
    const graph::Value& value = graph.value({id});
    int64_t bytes = bytes_of(value.type);
    if (value.requires_grad)
      bytes =
          static_cast<int64_t>((2 + space.problem().settings.state) * static_cast<double>(bytes));
    out.push_back({value.name, bytes});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (out.size() > kMost) out.resize(kMost);
  return out;
}

std::string describe(const Space& space, const Arrangement& arrangement) {
  const Problem& problem = space.problem();
  std::string text = problem.pipeline > 1 ? fmt::format("{} stages of {} device(s), {}",
                                                        arrangement.begins.size() + 1,
                                                        problem.width(), arrangement.schedule)
                                          : fmt::format("1 stage of {} device(s)", problem.width());
  if (arrangement.zero > 0) text += fmt::format("; ZeRO {}", arrangement.zero);
  if (arrangement.recompute > 0)
    text += fmt::format("; {:.0f} % of the blocks recomputed", 100 * arrangement.recompute);
  return text;
}

std::string to_json(const Report& report) {
  using Json = nlohmann::ordered_json;
  const Statistics& s = report.statistics;
  Json json = {{"statistics",
                {{"calls", s.calls},
                 {"kinds", s.kinds},
                 {"candidates", s.candidates},
                 {"segments", s.segments},
                 {"steps", s.steps},
                 {"labels", s.labels},
                 {"frontiers", s.frontiers},
                 {"arranged", s.arranged},
                 {"simulated", s.simulated},
                 {"space_seconds", s.space_seconds},
                 {"search_seconds", s.search_seconds},
                 {"check_seconds", s.check_seconds}}},
               {"least_resting", report.least_resting}};
  json["contributors"] = Json::array();
  for (const Contributor& c : report.contributors)
    json["contributors"].push_back({{"name", c.name}, {"bytes", c.bytes}});
  json["tried"] = Json::array();
  for (const Tried& t : report.tried)
    json["tried"].push_back({{"what", t.what},
                             {"seconds", t.seconds},
                             {"peak", t.peak},
                             {"chosen", t.chosen},
                             {"why", t.why}});
  json["choices"] = Json::array();
  for (const Choice& c : report.choices) {
    Json row = {{"node", c.node},   {"stage", c.stage},     {"recompute", c.recompute},
                {"input", c.input}, {"dim", c.dim},         {"micro", c.micro},
                {"once", c.once},   {"resting", c.resting}, {"saved", c.saved}};
    row["others"] = Json::array();
    for (const Other& o : c.others)
      row["others"].push_back(
          {{"input", o.input}, {"dim", o.dim}, {"more", o.more}, {"bytes", o.bytes}});
    json["choices"].push_back(std::move(row));
  }
  return json.dump();
}

}  // namespace nns::solve
