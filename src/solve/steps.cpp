// The steps of a space, its segments, and what its pieces cost.
#include <algorithm>

#include "base/error.h"
#include "graph/nest.h"
#include "lower/distribution.h"
#include "lower/passes.h"
#include "lower/uses.h"
#include "operators/own.h"
#include "solve/space.h"

namespace nns::solve {

using graph::Graph;
using graph::Node;

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

int place_in(const std::vector<int>& list, int value) {
  const auto found = std::find(list.begin(), list.end(), value);
  return found == list.end() ? -1 : static_cast<int>(found - list.begin());
}

// The outermost entry of a list that a module stands in: "layers.3" of "model.layers.3.mlp".
std::string block_of(const std::string& module) {
  for (size_t start = 0; start < module.size();) {
    const size_t stop = std::min(module.find('.', start), module.size());
    if (module.find_first_not_of("0123456789", start) >= stop) return module.substr(0, stop);
    start = stop + 1;
  }
  return "";
}

}  // namespace

Live Space::live_of(int value) {
  return {type_of(value), requires_[at(value)], 0, 0, leaf_of(value)};
}

int Space::add(const Step& step) {
  const auto [known, fresh] = step_ids_.try_emplace(step, static_cast<int>(steps_.size()));
  if (fresh) steps_.push_back(step);
  return known->second;
}

// Whether lowering may put the sum that the node reads first into its call: as lower::fuse_sums.
bool Space::is_sum_before(const Node& node) const {
  const Graph& graph = *problem_.graph;
  const int x = inputs_[at(node.id)].at(0);
  const graph::Value& value = graph.value({x});
  if (value.producer < 0 || !operators::own_takes(problem_.device, value.type.dtype)) return false;
  const Node& made = graph.nodes[at(value.producer)];
  const auto& addends = inputs_[at(made.id)];
  return lower::is_plain_sum(made.op, made.args) && addends.size() == 2 &&
         graph.value({addends[0]}).type == value.type &&
         graph.value({addends[1]}).type == value.type && readers_[at(x)].front().node == node.id &&
         lower::block_of(made.module) == lower::block_of(node.module);
}

uint8_t Space::spared_id(double seconds) const {
  if (seconds <= 0) return 0;
  const auto known = std::find(spared_.begin(), spared_.end(), seconds);
  const auto number = static_cast<size_t>(known - spared_.begin());
  if (known == spared_.end()) spared_.push_back(seconds);
  NNS_CHECK(number < 254, "more than 254 kinds of norms");
  return static_cast<uint8_t>(number + 1);
}

void Space::find_steps() {
  const Graph& graph = *problem_.graph;
  std::vector<int> alive, left = uses_, results, next;
  Step step;  // one for all: what it holds is written anew without asking for memory
  for (const Node& node : graph.nodes) {
    step.of_sum = false;
    step.operands.clear();
    step.lives.clear();
    step.enter.clear();
    step.results.clear();
    step.result_of.clear();
    step.last.clear();
    step.updates.clear();
    step.survive.clear();
    step.readers.clear();
    step.codes.clear();
    auto inputs = inputs_[at(node.id)];
    if (live_[at(node.id)]) {
      step.kind = kind_[at(node.id)];
      step.asked = asked_[at(node.id)];
      step.of_sum = !inputs.empty() && is_sum_before(node);
    } else {
      step.kind = kUnread;
      step.asked = {};
      step.asked.used.assign(node.outputs.size(), false);
      std::erase_if(inputs, [&](int in) { return !rests(in); });
      if (inputs.empty()) continue;
    }
    for (int in : inputs) {
      const int leaf = leaf_of(in);
      --left[at(in)];
      step.lives.push_back(live_of(in));
      if (leaf >= 0 && leaves_[at(leaf)].single) {
        step.operands.push_back({-1, leaf});
        continue;
      }
      if (place_in(alive, in) < 0) {
        alive.push_back(in);
        step.enter.push_back(live_of(in));
      }
      step.operands.push_back({place_in(alive, in), -1});
    }
    results.clear();
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (!step.asked.used[k]) continue;
      step.results.push_back(live_of(node.outputs[k]));
      step.result_of.push_back(static_cast<int>(k));
      results.push_back(node.outputs[k]);
    }
    for (const auto& [buffer, value] : graph.buffer_updates) {
      const int result = place_in(results, value);
      if (result < 0) continue;
      const int leaf = leaf_of(buffer);
      const bool single = leaf >= 0 && leaves_[at(leaf)].single;
      step.updates.push_back(
          {result, single ? -1 : place_in(alive, buffer), single ? place_in(inputs, buffer) : -1});
      if (leaf >= 0 && !single) --left[at(buffer)];
    }
    for (size_t i = 0; i < alive.size(); ++i)
      if (left[at(alive[i])] == 0 && leaf_of(alive[i]) >= 0)
        step.last.push_back(static_cast<int>(i));
    alive.insert(alive.end(), results.begin(), results.end());
    next.clear();
    for (size_t i = 0; i < alive.size(); ++i) {
      if (left[at(alive[i])] == 0) continue;
      step.survive.push_back(static_cast<int>(i));
      step.readers.push_back(std::min(left[at(alive[i])], kManyReaders));
      step.codes.push_back(codes_after(alive[i], node.id));
      next.push_back(alive[i]);
    }
    alive.swap(next);
    sequence_.push_back(add(step));
    nodes_.push_back(node.id);
  }
  add_results(alive);
}

void Space::add_results(std::vector<int>& alive) {
  const Graph& graph = *problem_.graph;
  Step step;
  step.kind = kResults;
  const auto* loss =
      graph.outputs.empty() ? nullptr : std::get_if<graph::ValueRef>(&graph.outputs[0].node);
  bool first = true;
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) {
      const int leaf = leaf_of(id);
      step.loss.push_back(first && loss != nullptr && loss->id == id && gets_[at(id)]);
      first = false;
      step.lives.push_back(live_of(id));
      if (leaf >= 0 && leaves_[at(leaf)].single) {
        step.operands.push_back({-1, leaf});
        return;
      }
      if (place_in(alive, id) < 0) {
        alive.push_back(id);
        step.enter.push_back(live_of(id));
      }
      step.operands.push_back({place_in(alive, id), -1});
    });
  for (size_t i = 0; i < alive.size(); ++i)
    if (leaf_of(alive[i]) >= 0) step.last.push_back(static_cast<int>(i));
  sequence_.push_back(add(step));
  nodes_.push_back(-1);
}

void Space::find_segments() {
  std::string before = "?";
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::string block =
        nodes_[i] < 0 ? "" : block_of(problem_.graph->nodes[at(nodes_[i])].module);
    if (block != before) {
      segments_.push_back(i);
      listed_.push_back(!block.empty());
    }
    before = block;
  }
  of_type_.resize(types_.size());
  for (OfType& of : of_type_) {
    of.conversions.resize(2 * kCodes * kCodes);
    of.sums.assign(kCodes, -1);
    of.bytes.assign(kCodes, -1);
  }
  rests_.assign(leaves_.size(), std::vector<std::optional<Rest>>(4 * kCodes));
}

void Space::find_alive() {
  alive_ = {{}};
  for (int number : sequence_) {
    const Step& step = steps_[at(number)];
    std::vector<Live> all = alive_.back(), next;
    all.insert(all.end(), step.enter.begin(), step.enter.end());
    all.insert(all.end(), step.results.begin(), step.results.end());
    for (size_t i = 0; i < step.survive.size(); ++i) {
      next.push_back(all[at(step.survive[i])]);
      next.back().readers = step.readers[i];
      next.back().codes = step.codes[i];
    }
    alive_.push_back(std::move(next));
  }
}

void Space::find_segment_ids() {
  std::map<std::pair<std::vector<int>, std::vector<Live>>, int> known;
  for (size_t s = 0; s < segments_.size(); ++s) {
    std::vector<int> steps(sequence_.begin() + static_cast<std::ptrdiff_t>(segments_[s]),
                           sequence_.begin() + static_cast<std::ptrdiff_t>(segment_end(s)));
    segment_ids_.push_back(
        known.try_emplace({std::move(steps), alive_[segments_[s]]}, static_cast<int>(known.size()))
            .first->second);
  }
}

const CallPiece& Space::make(int kind, size_t candidate, const Asked& asked) const {
  const auto [known, fresh] = pieces_.try_emplace({kind, candidate, asked});
  if (fresh) {
    const Kind& of = kinds_[at(kind)];
    known->second =
        make_piece(*problem_.graph, problem_.graph->nodes[at(of.node)], of.candidates[candidate],
                   asked, {problem_.width(), problem_.device, &problem_.on});
  }
  return known->second;
}

const CallPiece& Space::piece(int step, size_t candidate, uint32_t strided) const {
  const CallPiece*& known = of_step_[static_cast<uint64_t>(step) << 40 |
                                     static_cast<uint64_t>(candidate) << 32 | strided];
  if (known == nullptr) {
    const Step& of = steps_[at(step)];
    Asked asked = of.asked;
    for (size_t i = 0; i < asked.strided.size() && i < 32; ++i)
      asked.strided[i] = strided >> i & 1u;
    known = &make(of.kind, candidate, asked);
  }
  return *known;
}

const ConversionPiece& Space::conversion(int type, Code from, Code to, bool requires_grad) const {
  auto& known =
      of_type_[at(type)]
          .conversions[static_cast<size_t>((from * kCodes + to) * 2 + (requires_grad ? 1 : 0))];
  if (!known)
    known = make_conversion(types_[at(type)], from, to, requires_grad,
                            {problem_.width(), problem_.device, &problem_.on});
  return *known;
}

TensorType Space::local(int type, Code code) const {
  const TensorType& whole = types_[at(type)];
  return {layout_of(code, problem_.width()).local_shape(whole.shape, 0), whole.dtype};
}

int64_t Space::local_bytes(int type, Code code) const {
  int64_t& known = of_type_[at(type)].bytes[code];
  if (known < 0) known = bytes_of(local(type, code));
  return known;
}

double Space::sum(int type, Code code) const {
  double& known = of_type_[at(type)].sums[code];
  if (known < 0) known = sum_seconds(local(type, code), problem_.on);
  return known;
}

const Space::Rest& Space::rest(int leaf, Code home, int zero) const {
  auto& known = rests_[at(leaf)][static_cast<size_t>(zero * kCodes + home)];
  if (!known) known = make_rest(leaves_[at(leaf)], home, zero);
  return *known;
}

Space::Rest Space::make_rest(const Leaf& leaf, Code home, int zero) const {
  using operators::Communication;
  Rest rest;
  if (!leaf.rests) return rest;
  const TensorType type = local(leaf.type, home);
  rest.bytes = bytes_of(type);
  if (!leaf.weight || (!leaf.trained && zero == plan::Zero::none)) return rest;
  const lower::StepSettings& settings = problem_.settings;
  const cost::LinkCosts& links = problem_.on.links;
  std::vector<int> ranks;  // that hold addends of its gradient
  for (int u = 0; u < problem_.runtime_ngpus; u += problem_.plan_ngpus)
    for (int d = 0; d < (home == kPartial ? problem_.width() : 1); ++d) ranks.push_back(u + d);
  const int n = static_cast<int>(ranks.size());
  if (n == 1 || type.shape.empty()) zero = plan::Zero::none;
  TensorType part = type;  // the largest of its shards
  if (zero > plan::Zero::none) {
    int64_t& length = part.shape[lower::shard_dim(type.shape, n)];
    length = (length + n - 1) / n;
  }
  const auto rests = [&](int level) { return zero >= level ? part : type; };
  const bool across = cost::crosses_hosts(ranks, links);
  const auto collective = [&](Communication kind, DType dtype) {
    return lower::collective_seconds(kind, {type.shape, dtype}, ranks, problem_.on);
  };
  if (zero == plan::Zero::weights)
    rest.forward = rest.again = collective(Communication::all_gather, type.dtype);
  if (leaf.requires_grad && (zero == plan::Zero::slots || zero == plan::Zero::gradients)) {
    // Weights are gathered in sets: each pays for the part of a start that its bytes fill.
    const auto kind = Communication::all_gather;
    const double start = cost::collective_seconds(kind, 0, 1, n, across, links);
    const double filled = std::min(
        1.0, static_cast<double>(bytes_of(type)) / static_cast<double>(settings.bucket_bytes));
    rest.seconds = cost::collective_seconds(kind, n * numel(part.shape), size_of(type.dtype), n,
                                            across, links) -
                   (1 - filled) * start;
  }
  if (!leaf.trained) {
    rest.bytes = bytes_of(rests(plan::Zero::weights));
    return rest;
  }
  const TensorType gradient{rests(plan::Zero::gradients).shape, lower::gradient_dtype(type.dtype)};
  rest.bytes = bytes_of(rests(plan::Zero::weights)) + bytes_of(gradient) +
               static_cast<int64_t>(settings.state *
                                    static_cast<double>(bytes_of(rests(plan::Zero::slots))));
  const lower::StepPart once = lower::step_part(type, ranks, problem_.on, settings);
  rest.update = lower::step_part(rests(plan::Zero::slots), ranks, problem_.on, settings).update;
  rest.seconds += rest.update;
  if (zero <= plan::Zero::slots) rest.seconds += once.sum;
  rest.gradient = lower::accumulate_seconds(gradient, problem_.on);
  if (zero >= plan::Zero::gradients)
    rest.scatter = collective(Communication::scatter_gradient, gradient.dtype);
  rest.gradient += rest.scatter;
  rest.joined = zero == plan::Zero::weights;
  return rest;
}

Space::Rest Space::unread(int zero) const {
  Rest out;
  out.bytes = constants_;
  for (const auto& [leaf, count] : unread_) {
    const Rest rest = make_rest(leaf, kWhole, zero);
    out.bytes += count * rest.bytes;
    out.seconds += count * rest.seconds;
  }
  return out;
}

}  // namespace nns::solve
