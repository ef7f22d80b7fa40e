// Profiles of machines: what they say of calls and links, and that whatever is no profile is
// refused, not used.
#include "cost/profile.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "lower/call_key.h"
#include "lower/duration.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::cost;

namespace {

constexpr const char* kProfile = R"json({
  "kind": "nnscaler.profile", "format": 1, "version": "0.1.0", "made": "2026-11-29T12:00:00Z",
  "machine": { "host": "here", "processor": "Some CPU", "ranks": 2, "threads": 1 },
  "figures": { "memory": 8e9, "memory_bandwidth": 1e10, "start": 1e-6, "half_filled": 1,
    "flops": { "float32": 1e11 },
    "links": { "call": 1e-5, "latency": 1e-6, "seconds_per_byte": 1e-9, "across_nodes": 1 } },
  "links": [ { "collective": "all_reduce", "ranks": 2, "bytes": 4096, "seconds": 3e-5 },
    { "collective": "all_reduce", "ranks": 2, "bytes": 1024, "seconds": 2e-5 } ],
  "steps": [ { "optimizer": "adamw", "seconds_per_byte": 1e-9, "seconds": 1e-3 } ],
  "calls": [
    { "call": "aten::linear(float32[4, 8], float32[8, 8], -)", "seconds": 5e-5, "flops": 1e7,
      "bytes": 1000, "largest": 64, "dtype": "float32" } ]
})json";

std::string with(const std::string& what, const std::string& by) {
  std::string text = kProfile;
  return text.replace(text.find(what), what.size(), by);
}

std::string refusal(const std::string& text) {
  try {
    parse_profile(text, "p.json");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::state);
    return e.message() + "|" + e.hint();
  }
  return "";
}

}  // namespace

TEST_CASE("a profile says what calls like its own take, and from where", "[cost]") {
  const Hardware on = parse_profile(kProfile, "p.json");
  CHECK(on.origin == Origin::measured);
  CHECK(on.devices_per_host == 2);
  CHECK(on.name == "measured (Some CPU, 2 rank(s) of 1 thread(s))");
  const Profile& profile = *on.profile;
  const auto own = profile.call("aten::linear(float32[4, 8], float32[8, 8], -)", 1);
  REQUIRE(own);
  CHECK(own->seconds == 5e-5);
  CHECK(own->origin == Origin::measured);
  // The model says 1e7 / 1e11 s of the measured call, so half of it takes half.
  const auto half = profile.call("aten::linear(float32[2, 8], float32[8, 8], -)", 5e-5);
  REQUIRE(half);
  CHECK(half->origin == Origin::interpolated);
  const double filled = 64.0 / 65;
  CHECK(half->seconds == Approx(5e-5 * 5e-5 / (1e-4 / filled)));
  CHECK(!profile.call("aten::linear(float32[2, 8], float32[8, 8], -)", 1));        // too far away
  CHECK(!profile.call("aten::linear_input(float32[2, 8], float32[8, 8])", 1e-4));  // another
  CHECK(!profile.call("aten::line", 1e-4));
}

TEST_CASE("a profile says what links take between sizes and beyond them", "[cost]") {
  const auto profile = parse_profile(kProfile, "p.json").profile;
  const auto at = [&](double bytes) { return profile->link("all_reduce", 2, bytes); };
  CHECK(at(1024)->seconds == 2e-5);
  CHECK(at(1024)->origin == Origin::measured);
  CHECK(at(2560)->seconds == Approx(2.5e-5));
  CHECK(at(2560)->origin == Origin::interpolated);
  CHECK(at(7168)->seconds == Approx(4e-5));
  CHECK(at(1)->seconds == 2e-5);  // a start
  CHECK(!profile->link("all_reduce", 4, 1024));
  CHECK(!profile->link("all_gather", 2, 1024));
  CHECK(profile->step("adamw")->seconds_per_byte == 1e-9);
  CHECK(!profile->step("sgd"));
}

TEST_CASE("a call is known by types and attributes, not by its place", "[cost]") {
  lower::Program program;
  program.slots.resize(2);
  for (int id : {0, 1}) {
    program.slots[static_cast<size_t>(id)].id = id;
    program.slots[static_cast<size_t>(id)].type = {{4, 8}, DType::f32};
  }
  lower::Instr instr;
  instr.op = "nnscaler::dropout";
  instr.args = {
      {"self", lower::Ref{0}}, {"p", 0.5}, {"key", std::string("a.b#0")}, {"offset", Shape{0, 4}}};
  instr.outs = {1};
  const lower::Storage storage(program);
  CHECK(lower::call_key(program, storage, instr) == "nnscaler::dropout(float32[4, 8], 0.5)");
  instr.kind = lower::InstrKind::accumulate;
  instr.args = {{"value", lower::Ref{0}}};
  CHECK(lower::call_key(program, storage, instr) == "accumulate(float32[4, 8])");
}

TEST_CASE("a step is priced by a profile as far as it goes", "[cost]") {
  const auto graph = test::alike(2);
  plan::Builder builder(graph, 1, 1);
  for (const graph::Node& node : graph->nodes) builder.replicate(node.id, 1);
  const auto plan = std::make_shared<const plan::Plan>(builder.finish("test"));
  lower::Options options;
  options.plan = plan;
  const lower::Skeleton skeleton(graph, options);
  Hardware on = parse_profile(kProfile, "p.json");
  auto profile = std::make_shared<Profile>(*on.profile);
  const lower::Program program = skeleton.project(0).program;
  const lower::Storage storage(program);
  int64_t calls = 0;
  profile->calls.clear();
  for (const lower::Segment& segment : program.segments)
    for (const lower::Instr& instr : segment.instrs)
      if (instr.kind == lower::InstrKind::call || instr.kind == lower::InstrKind::accumulate) {
        profile->calls[lower::call_key(program, storage, instr)] = {2e-3, 1e-4};
        ++calls;
      }
  on.profile = profile;
  const lower::StepCost cost = lower::simulate(skeleton, *plan, on, {});
  CHECK(cost.forward.all() + cost.backward.all() == Approx(2e-3 * static_cast<double>(calls)));
  CHECK(cost.forward.by_origin[0] + cost.backward.by_origin[0] ==
        Approx(2e-3 * static_cast<double>(calls)));
  // Memory over time has the peak, and nothing of a micro-batch stays.
  for (const lower::RankAccount& rank : cost.ranks) {
    REQUIRE(rank.course.size() == cost.line.at(static_cast<size_t>(rank.row)).size());
    int64_t most = 0;
    for (const lower::MemoryAt& at : rank.course) most = std::max(most, at.top);
    CHECK(most == rank.memory.peak);
    CHECK(rank.course.back().after == 0);
  }
}

TEST_CASE("what is no profile is refused", "[cost]") {
  CHECK(refusal(kProfile).empty());
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {"", "p.json: "},
           {"[]", "measure anew: nnscaler profile"},
           {with("nnscaler.profile", "nnscaler.plan"), "p.json is not a profile"},
           {with("\"format\": 1", "\"format\": 9"), "has format 9; this version reads 1"},
           {with("5e-5", "-1"), "'seconds' is -1; expected a positive number"},
           {with("5e-5", "1e999"), "p.json"},
           {with("\"largest\": 64", "\"largest\": -64"), "'largest' is -64; expected a number of"},
           {with("\"dtype\": \"float32\"", "\"dtype\": \"float31\""), "no dtype 'float31'"},
           {with("\"ranks\": 2, \"threads\"", "\"ranks\": 1.5, \"threads\""),
            "'ranks' is 1.5; expected a whole number"},
           {with("{ \"float32\": 1e11 }", "{}"), "'figures.flops' has no float32"},
       })
    CHECK_THAT(refusal(text), Catch::Contains(said));
}

TEST_CASE("damaged profiles are refused or read, and nothing else", "[cost]") {
  std::mt19937 random(7);
  const std::string whole = kProfile;
  for (int i = 0; i < 3000; ++i) {
    std::string text = whole;
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
    if (random() % 4 == 0) text.resize(random() % text.size());
    try {
      parse_profile(text, "p.json");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::state);
    }
  }
}

TEST_CASE("a profile of another host or version is not used", "[cost]") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("profile" + std::to_string(getpid()))).string();
  const auto said = [&](std::string_view host, std::string_view version) -> std::string {
    try {
      measured_hardware(path, host, version);
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::usage);
      CHECK(e.hint() == "measure this machine: nnscaler profile");
      return e.message();
    }
    return "";
  };
  CHECK_THAT(said("here", "0.1.0"), Catch::Contains("this machine has no profile"));
  write_file_atomic(path, kProfile, "test");
  CHECK(said("here", "0.1.0").empty());
  CHECK_THAT(said("there", "0.1.0"),
             Catch::Contains("is of another host, 'here'; expected 'there'"));
  CHECK_THAT(said("here", "0.2.0"), Catch::Contains("is of another version, '0.1.0'"));
  std::filesystem::remove(path);
}
