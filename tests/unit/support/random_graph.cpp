#include "support/random_graph.h"

#include "support/graph_text.h"

namespace nns::test {

using solve::Added;
using solve::Frontier;
using solve::Mover;
using solve::Space;
using solve::Step;

GraphPtr random_graph(std::mt19937& random, int calls) {
  graph::Graph g;
  g.name = "Random";
  const auto leaf = [&](graph::Role role, Shape shape, const std::string& name) {
    const int id = static_cast<int>(g.values.size());
    g.values.push_back(
        {id, {std::move(shape), DType::f64}, role, role == graph::Role::parameter, name, -1, {}});
    return id;
  };
  g.inputs = {leaf(graph::Role::input, {8, 8}, "x")};
  std::vector<int> values = {g.inputs[0]}, weights;
  const auto any = [&](const std::vector<int>& list) {
    return graph::ValueRef{list[random() % list.size()]};
  };
  const auto recent = [&] {
    return graph::ValueRef{
        values[values.size() - 1 - random() % std::min<size_t>(2, values.size())]};
  };
  const auto call = [&](const char* op, std::vector<graph::NamedArg> args, int block) {
    return add_call(g, op, std::move(args), fmt::format("h.{}", block))[0];
  };
  // Some graphs repeat their calls, as layers do.
  const int length = random() % 2 == 0 ? calls - 1 : (calls - 1) / 2;
  std::vector<uint32_t> script;
  for (int i = 0; i < length; ++i) script.push_back(static_cast<uint32_t>(random() % 8));
  for (int i = 0; i < calls - 1; ++i) {
    const int block = i / length;
    const auto x = recent();
    switch (script[static_cast<size_t>(i % length)]) {
      case 0:
      case 1: {
        const bool tied = !weights.empty() && random() % 3 == 0;
        if (!tied) {
          weights.push_back(leaf(graph::Role::parameter, {8, 8}, fmt::format("w{}", i)));
          g.parameters.push_back(weights.back());
        }
        values.push_back(call("aten::linear",
                              {{"input", x},
                               {"weight", tied ? any(weights) : graph::ValueRef{weights.back()}},
                               {"bias", {}}},
                              block));
        break;
      }
      case 2:
        values.push_back(call("aten::relu", {{"self", x}}, block));
        break;
      case 3:
        values.push_back(call("aten::add.Tensor",
                              {{"self", x}, {"other", any(values)}, {"alpha", int64_t{1}}}, block));
        break;
      case 4:
        values.push_back(call("aten::mul.Tensor", {{"self", x}, {"other", any(values)}}, block));
        break;
      case 5:
        values.push_back(call("aten::t", {{"self", x}}, block));
        break;
      case 6:
        values.push_back(
            call("aten::softmax.int", {{"self", x}, {"dim", int64_t{-1}}, {"dtype", {}}}, block));
        break;
      default:
        values.push_back(call("aten::mm", {{"self", x}, {"mat2", any(values)}}, block));
    }
  }
  const int loss =
      add_call(g, "aten::sum", {{"self", graph::ValueRef{values.back()}}, {"dtype", {}}})[0];
  g.outputs.resize(random() % 3 == 0 ? 2 : 1);
  g.outputs[0].node = graph::ValueRef{loss};
  if (g.outputs.size() == 2) g.outputs[1].node = any(values);
  for (graph::Value& value : g.values)
    if (value.producer >= 0) value.requires_grad = true;
  return std::make_shared<const graph::Graph>(std::move(g));
}

size_t candidates_at(const Space& space, size_t i) {
  const Step& step = space.steps()[static_cast<size_t>(space.sequence()[i])];
  return step.kind < 0 ? 1 : space.kinds()[static_cast<size_t>(step.kind)].candidates.size();
}

Candidates random_choice(const Space& space, std::mt19937& random) {
  Candidates out;
  for (size_t i = 0; i < space.sequence().size(); ++i)
    out.push_back(static_cast<uint8_t>(random() % candidates_at(space, i)));
  return out;
}

double count_choices(const Space& space) {
  double n = 1;
  for (size_t i = 0; i < space.sequence().size(); ++i)
    n *= static_cast<double>(candidates_at(space, i));
  return n;
}

namespace {

void enumerate(const Space& space, const Mover& mover, size_t i, const Frontier& frontier,
               const Added& so_far, std::vector<Priced>& out) {
  if (i == space.sequence().size()) {
    out.push_back({so_far.seconds, so_far.resting + so_far.saved});
    return;
  }
  const int number = space.sequence()[i];
  for (size_t c = 0; c < candidates_at(space, i); ++c)
    for (uint32_t h = 0; h < mover.homes(number); ++h) {
      Frontier next = frontier;
      Added added = so_far;
      if (mover.move(number, c, h, next, added)) enumerate(space, mover, i + 1, next, added, out);
    }
}

}  // namespace

std::vector<Priced> all_plans(const Space& space, int zero) {
  std::vector<Priced> out;
  const Space::Rest unread = space.unread(zero);
  enumerate(space, Mover(space, true, zero), 0, {}, {unread.seconds, unread.bytes, 0}, out);
  return out;
}

}  // namespace nns::test
