// Hardware by name and from descriptions, what calls cost on it, and what is refused.
#include "cost/hardware.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "lower/duration.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::cost;

namespace {

constexpr const char* kLab = R"(
name: lab
devices_per_host: 4
device: { memory: 80e9, memory_bandwidth: 1e12, flops: { float32: 1e13 }, start: 1e-6,
          half_filled: 1, product_efficiency: 1, memory_efficiency: 0.5 }
links: { inside: 1e11, across: 1e10, latency: 2e-6, start: 1e-5 }
)";

std::string refusal(const std::string& text) {
  try {
    parse_hardware(text, "lab.yaml");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::usage);
    return e.message() + "|" + e.hint();
  }
  return "";
}
std::string unknown(const std::string& name) {
  try {
    find_hardware(name);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::usage);
    return e.message() + "|" + e.hint();
  }
  return "";
}

std::string without(std::string text, const std::string& what, const std::string& by = "") {
  return text.replace(text.find(what), what.size(), by);
}

}  // namespace

TEST_CASE("known hardware, and as many devices a host as it says", "[cost]") {
  for (const std::string& name : known_hardware()) {
    const Hardware on = find_hardware(name);
    CHECK(on.devices_per_host == on.links.devices_per_node);
    CHECK(on.memory > 0);
    CHECK(on.flops.at(DType::f32) > 0);
    CHECK(on.origin == Origin::modelled);
  }
  const Hardware four = find_hardware("h100x4");
  CHECK(four.name == "h100");
  CHECK(four.devices_per_host == 4);
  CHECK(four.links.devices_per_node == 4);
}

TEST_CASE("a description says all that counts", "[cost]") {
  const Hardware lab = parse_hardware(kLab, "lab.yaml");
  CHECK(lab.name == "lab");
  CHECK(lab.memory == 80000000000);
  CHECK(lab.links == LinkCosts{1e-5, 2e-6, 1e-11, 10, 4});
  const Hardware named = parse_hardware(
      "devices_per_host: 2\ndevice: a100-80\nlinks: { inside: 3e11, across: 1e10 }\n", "my.yaml");
  CHECK(named.name == "my.yaml");
  CHECK(named.memory_bandwidth == 2.039e12);
  CHECK(named.links.devices_per_node == 2);
}

TEST_CASE("hardware that is not there, or lacks something", "[cost]") {
  CHECK(unknown("h1000") ==
        "[cost.hardware] no hardware 'h1000'; known: a100-40, a100-80, b200, cpu, h100, h200, "
        "mi300x|did you mean 'h100'?");
  CHECK(unknown("quantum").ends_with("--hardware cluster.yaml (docs/planner.md)"));
  CHECK(unknown("h100x0").starts_with("[cost.hardware] 'h100x0': 0 devices a host; expected 1"));
  CHECK(unknown("/nowhere/lab.yaml").find("/nowhere/lab.yaml") != std::string::npos);
  const std::string lab = kLab;
  CHECK(refusal(without(lab, "links: { inside: 1e11, across: 1e10, latency: 2e-6, start: 1e-5 }"))
            .find("'links' is missing; expected { inside: bytes a second") != std::string::npos);
  CHECK(refusal(without(lab, "across: 1e10, ")).find("'links.across' is missing") !=
        std::string::npos);
  CHECK(refusal(without(lab, "devices_per_host: 4", "devices_per_host: 0"))
            .find("'devices_per_host' is the number 0; expected devices of a host, 1 at least") !=
        std::string::npos);
  CHECK(refusal(without(lab, "devices_per_host: 4", "devices_per_host: 2.5"))
            .find("'devices_per_host' is 2.5") != std::string::npos);
  CHECK(refusal(without(lab, "memory_bandwidth", "memory_bandwith"))
            .ends_with("did you mean 'device.memory_bandwidth'?"));
  CHECK(refusal(without(lab, "{ float32: 1e13 }", "{ bfloat16: 1e13 }"))
            .find("'device.flops.float32' is missing") != std::string::npos);
  CHECK(refusal(without(lab, "flops: { float32: 1e13 }, ")).find("'device.flops' is missing") !=
        std::string::npos);
  CHECK(refusal("devices_per_host: 1\ndevice: h101\nlinks: { inside: 1, across: 1 }\n")
            .find("no device 'h101'; known: a100-40") != std::string::npos);
  CHECK(refusal("devices_per_host: 1\ndevice: [1]\nlinks: { inside: 1, across: 1 }\n")
            .find("device is a list; expected a table with memory") != std::string::npos);
}

TEST_CASE("a call takes its products, its traffic or a start, whichever is longest", "[cost]") {
  const Hardware lab = parse_hardware(kLab, "lab.yaml");
  CHECK(roofline(1e12, 8, 1 << 30, DType::f32, lab) == Approx(0.1));
  CHECK(roofline(1, 5e9, 1 << 30, DType::f32, lab) == Approx(0.01));
  CHECK(roofline(1, 8, 1, DType::f32, lab) == 1e-6);
  // Half of the peak with as many elements as `half_filled`; other types go as 32-bit floats.
  CHECK(roofline(1e12, 8, 1, DType::bf16, lab) == Approx(0.2));
}

TEST_CASE("the sum of a gradient takes its part of a bucket's start", "[cost]") {
  const LinkCosts costs{1e-5, 2e-6, 1e-9, 10, 4};
  CHECK(gradient_sum_seconds(1000, 1, false, 100, costs) == 0);
  const double start = 1e-5 + 6 * 2e-6, bytes = 2.0 * 3 / 4 * 1000 * 1e-9;
  CHECK(gradient_sum_seconds(1000, 4, false, 4000, costs) == Approx(start / 4 + bytes));
  CHECK(gradient_sum_seconds(1000, 4, true, 4000, costs) == Approx(start / 4 + 10 * bytes));
}

TEST_CASE("a pipeline takes its schedule's time", "[cost]") {
  // Two stages of two blocks each: forward and backward of a micro-batch in either, and the idle
  // time of 1F1B, (p - 1) of m + p - 1 parts.
  const auto graph = test::alike(4);
  const Hardware on = find_hardware("cpu");
  const auto simulated = [&](int stages, int micro_batches) {
    plan::Builder builder(graph, stages, stages);
    const int nodes = static_cast<int>(graph->nodes.size());
    if (stages == 2) builder.stage({nodes / 2}, {{0}, {1}});
    for (int n = 0; n < nodes; ++n) builder.replicate(n, 1);
    builder.schedule("1f1b", micro_batches, 1);
    const auto plan = std::make_shared<const plan::Plan>(builder.finish("test"));
    lower::Options options;
    options.plan = plan;
    lower::StepSettings settings;
    settings.micro_batches = micro_batches;
    return lower::simulate(lower::Skeleton(graph, options), *plan, on, settings);
  };
  const auto one = simulated(1, 4), two = simulated(2, 4);
  CHECK(one.seconds == Approx(4 * (one.forward.all() + one.backward.all()) + one.once.update));
  CHECK(two.seconds < one.seconds + 4 * two.forward.communication + 4 * two.backward.communication);
  CHECK(two.seconds > one.seconds * 0.5);
  CHECK(two.resting < one.resting);
  // What calls take adds up to forward and backward, and lines end where the parts do.
  for (const auto& cost : {one, two}) {
    double forward = 0, backward = 0, last = 0;
    for (const auto& rank : cost.ranks)
      for (const auto& call : rank.spent) {
        forward += call.forward;
        backward += call.backward;
      }
    CHECK(forward == Approx(cost.forward.all()));
    CHECK(backward == Approx(cost.backward.all()));
    for (const auto& line : cost.line)
      for (const auto& part : line) last = std::max(last, part.stop);
    CHECK(last == Approx(cost.seconds - cost.once.sum - cost.once.update));
  }
  // One micro-batch through both stages and back, and three more on the slower stage.
  const double parts = two.forward.all() + two.backward.all();
  CHECK(two.seconds - two.once.sum - two.once.update >= (1 + 3.0 / 2) * parts * (1 - 1e-12));
}
