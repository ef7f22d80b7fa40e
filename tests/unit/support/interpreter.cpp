// The interpreter: ranks take turns; one that waits for others is passed over. Collectives are
// carried out here, when all of their members have come to them.
#include "support/interpreter.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "support/operators.h"
#include "support/rank.h"

namespace nns::test {
namespace {

using namespace lower;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// --- collectives ---------------------------------------------------------------------------------

Array total(const std::vector<Array>& parts, bool most) {
  Array out = copy(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i)
    out = zip(out, parts[i], [most](double a, double b) { return most ? std::max(a, b) : a + b; });
  return out;
}

// Elements that rank `me` of n sends when each sums its part, which the others give it, and gives
// them the sum.
int64_t all_reduce_sends(int64_t elements, int64_t n, int64_t me) {
  const int64_t longest = ceil_div(elements, n);
  int64_t sent = 0;
  for (int64_t r = 0; r < n; ++r) {
    const int64_t length = std::clamp<int64_t>(elements - r * longest, 0, longest);
    sent += r == me ? (n - 1) * length : length;
  }
  return sent;
}

class World {
 public:
  World(const Programs& programs, const Inputs& inputs) : programs_(programs), inputs_(inputs) {
    for (size_t r = 0; r < programs.ranks.size(); ++r) ranks_.emplace_back(programs, r, inputs);
  }

  Outcome run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank& rank : ranks_) moved = rank.run(mail_) || moved;
      for (Rank& rank : ranks_) moved = meet(rank) || moved;
    }
    for (const Rank& rank : ranks_)
      if (!rank.done())
        broken("rank {} waits for ever at {} in {}", rank.number(),
               rank.current() != nullptr ? rank.current()->op : "the end", rank.segment().name);
    for (const auto& [key, box] : mail_)
      if (!box.empty())
        broken("rank {} never receives from {}", std::get<1>(key), std::get<0>(key));
    sum_gradients();
    return outcome();
  }

 private:
  Rank& rank(int64_t number) { return ranks_.at(static_cast<size_t>(number)); }

  bool meet(Rank& one) {
    const Instr* instr = one.current();
    if (instr == nullptr || !is_collective(*instr)) return false;
    Shape group = argument<Shape>(*instr, "group");
    std::sort(group.begin(), group.end());  // parts lie in the order of ranks
    for (int64_t member : group) {
      const Instr* theirs = rank(member).current();
      if (theirs == nullptr || !is_collective(*theirs)) return false;
      Shape other = argument<Shape>(*theirs, "group");
      std::sort(other.begin(), other.end());
      if (other != group) return false;
      if (theirs->op != instr->op)
        broken("rank {} calls {}, rank {} {}", one.number(), instr->op, member, theirs->op);
    }
    if (instr->op == "comm::scatter_gradients") {
      scatter(group);
      return true;
    }
    std::vector<Array> parts;
    for (int64_t member : group) parts.push_back(rank(member).operand(*rank(member).current()));
    for (size_t i = 0; i < group.size(); ++i) complete(rank(group[i]), group, i, parts);
    return true;
  }

  // Several gradients in one message, each along its own dimension.
  void scatter(const Shape& group) {
    const auto n = static_cast<int>(group.size());
    std::vector<std::vector<Array>> made(group.size());
    std::vector<int64_t> sent(group.size(), 0);
    const Instr& first = *rank(group[0]).current();
    const auto& dims = argument<Shape>(first, "dims");
    for (size_t k = 0; k < dims.size(); ++k) {
      std::vector<Array> parts;
      for (int64_t member : group)
        parts.push_back(rank(member).operand(*rank(member).current(), k));
      const Array sum = total(parts, false);
      const auto dim = static_cast<size_t>(dims[k]);
      for (size_t me = 0; me < group.size(); ++me) {
        const Range r = lower::part_of({0, sum.shape[dim]}, static_cast<int>(me), n);
        made[me].push_back(copy(slice(sum, dim, r.start, r.stop)));
        Shape longest = sum.shape;
        longest[dim] = ceil_div(sum.shape[dim], n);
        sent[me] += (n - 1) * numel(longest);
      }
    }
    for (size_t me = 0; me < group.size(); ++me) {
      Rank& one = rank(group[me]);
      one.count("reduce_scatter", group.size(), sent[me],
                one.program().slot(one.current()->outs[0]).type.dtype);
      one.complete(std::move(made[me]));
    }
  }

  void complete(Rank& one, const Shape& group, size_t me, const std::vector<Array>& parts) {
    const Instr& instr = *one.current();
    const auto n = static_cast<int64_t>(group.size());
    const Array& mine = parts[me];
    std::string op = instr.op.substr(6);
    const bool scatter = op == "scatter_gradient";
    if (scatter) op = "reduce_scatter";
    const auto count = [&](int64_t elements) { one.count(op, group.size(), elements, mine.dtype); };
    if (op == "all_reduce") {
      const Arg* how = find_arg(instr, "reduce");
      const bool most = how != nullptr && std::get<std::string>(*how) == "max";
      count(all_reduce_sends(mine.count(), n, static_cast<int64_t>(me)));
      return one.complete(total(parts, most));
    }
    const auto dim = static_cast<size_t>(argument<int64_t>(instr, "dim"));
    // Payload is as long as the longest of the parts.
    const auto padded = [&](std::initializer_list<std::pair<size_t, int64_t>> cuts) {
      Shape shape = mine.shape;
      for (const auto& [d, whole] : cuts) shape[d] = ceil_div(whole, n);
      return (n - 1) * numel(shape);
    };
    const auto own = [&](const Array& whole) {
      const Range r =
          lower::part_of({0, whole.shape[dim]}, static_cast<int>(me), static_cast<int>(n));
      return copy(slice(whole, dim, r.start, r.stop));
    };
    if (op == "all_gather") {
      const Array whole = cat(parts, dim);
      if (whole.shape[dim] != argument<int64_t>(instr, "whole"))
        broken("parts of {} join to {}, not {}", instr.module, whole.shape[dim],
               argument<int64_t>(instr, "whole"));
      count(padded({{dim, whole.shape[dim]}}));
      one.complete(whole);
    } else if (op == "reduce_scatter") {
      count(padded({{dim, mine.shape[dim]}}));
      one.complete(own(total(parts, false)));
    } else if (op == "all_to_all") {
      const auto from = static_cast<size_t>(argument<int64_t>(instr, "from"));
      const int64_t whole = argument<int64_t>(instr, "whole");
      count(padded({{from, whole}, {dim, mine.shape[dim]}}));
      one.complete(own(cat(parts, from)));
    } else {
      broken("no collective {}", instr.op);
    }
  }

  // Gradients summed over the ranks that say so, and their bytes by the sets of each rank.
  void sum_gradients() {
    if (!programs_.plan || !ranks_[0].program().training) return;
    std::vector<std::map<int, Array>> sums(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Program& p = ranks_[r].program();
      for (size_t i = 0; i < p.parameters.size(); ++i) {
        const int id = p.parameters[i];
        const Share& share = p.shares.at(i);
        Array sum = Array::filled(gradient_type(p.slot(id)).shape, 0, p.slot(id).type.dtype);
        for (int other : addends(share, p.slot(id).name, static_cast<int>(r)))
          if (const Array* theirs = gradient(other, p.slot(id).name)) add_into(sum, *theirs);
        if (share.scatter) {
          const Range own = part_on(share, static_cast<int>(r));
          sum = copy(slice(sum, static_cast<size_t>(share.dim), own.start, own.stop));
        }
        sums[r][id] = sum;
      }
      for (const GradientSet& set : p.sets) {
        if (set.parameters.empty()) continue;
        const int64_t width = size_of(p.slot(set.parameters[0]).type.dtype);
        // Shards travel in pieces as long as the longest.
        const auto n = static_cast<int64_t>(set.over.size());
        int64_t longest = 0, elements = 0;
        for (int other : set.zero < plan::Zero::weights ? set.over : std::vector<int>{}) {
          int64_t theirs = 0;
          for (int id : set.parameters) {
            const Share& share = share_of(static_cast<int>(r), p.slot(id).name);
            const Shape& shape = p.slot(id).type.shape;
            theirs += numel(shape) / shape[static_cast<size_t>(share.dim)] *
                      part_on(share, other).length();
          }
          longest = std::max(longest, theirs);
        }
        if (n > 0 && set.zero < plan::Zero::weights)
          ranks_[r].count_step("all_gather", set.over.size(), (n - 1) * longest * width);
        if (set.late) continue;
        if (set.scatter)
          ranks_[r].count_step("reduce_scatter", set.over.size(), (n - 1) * longest * width);
        if (set.ranks.empty()) continue;
        for (int id : set.parameters) elements += numel(gradient_type(p.slot(id)).shape);
        if (set.scatter) elements = longest;
        const auto at = std::find(set.ranks.begin(), set.ranks.end(), static_cast<int>(r));
        ranks_[r].count_step("all_reduce", set.ranks.size(),
                             all_reduce_sends(elements, static_cast<int64_t>(set.ranks.size()),
                                              at - set.ranks.begin()) *
                                 width);
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].gradients = std::move(sums[r]);
  }
  // What a rank keeps of a gradient along the dimension that is cut.
  static Range part_on(const Share& share, int number) {
    const auto at = std::find(share.over.begin(), share.over.end(), number);
    return share.part(static_cast<int>(at - share.over.begin()));
  }
  // The ranks whose gradients are addends of what the rank keeps.
  std::set<int> addends(const Share& share, const std::string& name, int number) {
    std::set<int> out(share.reduce.begin(), share.reduce.end());
    out.insert(number);
    if (!share.scatter) return out;
    const std::set<int> across = out;
    for (int other : across) {
      const Share& theirs = share_of(other, name);
      out.insert(theirs.over.begin(), theirs.over.end());
    }
    return out;
  }
  const Share& share_of(int number, const std::string& name) {
    const Program& p = rank(number).program();
    for (size_t i = 0; i < p.parameters.size(); ++i)
      if (p.slot(p.parameters[i]).name == name) return p.shares.at(i);
    broken("rank {} does not hold {}", number, name);
  }
  // The part of the whole that a rank's gradient is.
  std::vector<Range> box_of(const Program& p, int id) {
    const Slot& slot = p.slot(id);
    std::vector<Range> box = slot.box;
    if (box.empty())
      for (int64_t length : slot.type.shape) box.push_back({0, length});
    if (p.shares.empty()) return box;
    const Share& share = share_of(p.rank, slot.name);
    if (!share.scatter && share.zero != plan::Zero::gradients) return box;
    const Range own = part_on(share, p.rank);
    Range& cut = box[static_cast<size_t>(share.dim)];
    cut = {cut.start + own.start, cut.start + own.stop};
    return box;
  }
  const Array* gradient(int number, const std::string& name) {
    Rank& one = rank(number);
    for (int id : one.program().parameters)
      if (one.program().slot(id).name == name) {
        const auto it = one.gradients.find(id);
        return it == one.gradients.end() ? nullptr : &it->second;
      }
    broken("rank {} is to sum {}, which it does not hold", number, name);
  }

  // Writes a rank's part into the whole; parts that several hold must be alike.
  static void join(Tensors& wholes, Tensors& seen, const Slot& slot, const std::vector<Range>& box,
                   const Array& part) {
    const Shape& shape = slot.box.empty() ? slot.type.shape : slot.whole;
    const auto [whole, fresh] = wholes.try_emplace(slot.name, Array::filled(shape, NAN));
    seen.try_emplace(slot.name, Array::filled(shape));
    const Array into = box.empty() ? whole->second : view_of(whole->second, box);
    each(part.shape, [&](const Index& i) {
      const double before = into.at(i), now = part.at(i);
      if (!std::isnan(before) && std::abs(before - now) > 1e-10 * std::max(1.0, std::abs(now)))
        broken("two ranks hold other parts of {}: {} and {}", slot.name, before, now);
      into.at(i) = now;
    });
  }

  Outcome outcome() {
    Outcome out;
    const int units = programs_.plan ? programs_.plan->units() : 1;
    const size_t micros = inputs_.samples.size();
    out.losses.assign(micros, NAN);
    out.results.resize(micros);
    Tensors seen;
    for (Rank& one : ranks_) {
      const int unit = programs_.plan ? one.number() / programs_.plan->plan_ngpus : 0;
      for (const auto& [k, loss] : one.losses) {
        double& known = out.losses.at(static_cast<size_t>(k * units + unit));
        if (!std::isnan(known) && std::abs(known - loss) > 1e-10 * std::max(1.0, std::abs(loss)))
          broken("ranks return other losses: {} and {}", known, loss);
        known = loss;
      }
      for (auto& [k, named] : one.results)
        out.results[static_cast<size_t>(k * units + unit)].push_back(std::move(named));
      for (const auto& [id, g] : one.gradients)
        join(out.gradients, seen, one.program().slot(id), box_of(one.program(), id), g);
      for (int id : one.program().buffers)
        join(out.buffers, seen, one.program().slot(id), one.program().slot(id).box,
             content(one, id, units));
      out.ranks.push_back(std::move(one.measured));
    }
    return out;
  }

  // A buffer after the step: what the last micro-batch left; of several units what each added.
  Array content(Rank& one, int id, int units) {
    const auto& mine = one.new_contents[id];
    const Array before = one.lasting().at(id);
    if (mine.empty()) return before;
    if (units == 1) return mine.rbegin()->second;
    const double decay = one.decays.at(id);
    Array now = before;
    const int device = one.number() % programs_.plan->plan_ngpus;
    std::vector<Array> last(static_cast<size_t>(units), before);
    for (const auto& [k, unused] : mine)
      for (int u = 0; u < units; ++u) {
        const Array next = rank(device + u * programs_.plan->plan_ngpus).new_contents.at(id).at(k);
        Array& old = last[static_cast<size_t>(u)];
        const Array added =
            zip(next, old, [decay](double fresh, double was) { return fresh - decay * was; });
        now = zip(now, added, [decay](double was, double add) { return decay * was + add; });
        old = next;
      }
    return now;
  }

  const Programs& programs_;
  const Inputs& inputs_;
  std::deque<Rank> ranks_;
  Mail mail_;
};

}  // namespace

Programs lower_all(std::shared_ptr<const graph::Graph> graph,
                   std::shared_ptr<const plan::Plan> plan,
                   std::shared_ptr<const lower::Skeleton> first) {
  Options options;
  options.plan = plan;
  options.first = std::move(first);
  options.sights = true;
  Programs out{graph, std::move(plan), {}, std::make_shared<const lower::Skeleton>(graph, options)};
  for (int r = 0; r < out.skeleton->world(); ++r) out.ranks.push_back(out.skeleton->project(r));
  return out;
}

Outcome run(const Programs& programs, const Inputs& inputs) {
  return World(programs, inputs).run();
}

Inputs random_inputs(const graph::Graph& graph, size_t micro_batches, uint64_t seed,
                     int64_t below) {
  uint64_t state = seed;
  const auto draw = [&] {
    state = hash_bytes("draw", state);
    return std::ldexp(static_cast<double>(state >> 11), -53);
  };
  const auto fill = [&](const TensorType& type) {
    Array out = Array::filled(type.shape, 0, type.dtype);
    for (double& x : out.memory->data)
      x = type.dtype == DType::boolean ? std::floor(draw() * 2)
          : is_floating(type.dtype)    ? draw() * 2 - 1
                                       : std::floor(draw() * static_cast<double>(below));
    return out;
  };
  Inputs inputs;
  for (const auto* list : {&graph.parameters, &graph.buffers})
    for (int id : *list) {
      const graph::Value& v = graph.value({id});
      inputs.weights[v.name] = fill(v.type);
    }
  for (size_t k = 0; k < micro_batches; ++k) {
    Tensors& sample = inputs.samples.emplace_back();
    for (int id : graph.inputs) sample[graph.value({id}).name] = fill(graph.value({id}).type);
  }
  return inputs;
}

}  // namespace nns::test
