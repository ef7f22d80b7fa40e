#include "lower/duration.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "lower/call_key.h"
#include "lower/schedule/pipeline.h"
#include "lower/traffic.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

using operators::Communication;

// Bytes a second that calls move through the memory of a device.
double rate_of(const cost::Hardware& on) {
  return on.memory_bandwidth * on.memory_efficiency;
}

// What profiles call it.
std::string_view link_name(Communication kind) {
  switch (kind) {
    case Communication::all_reduce:
      return "all_reduce";
    case Communication::all_gather:
      return "all_gather";
    case Communication::reduce_scatter:
    case Communication::scatter_gradient:
      return "reduce_scatter";
    case Communication::all_to_all:
      return "all_to_all";
    default:
      return "send";
  }
}

// What links do by the profile, else by the model: `bytes` are those of the whole tensor of a
// collective, or those of a message.
cost::Figure link(const cost::Hardware& on, Communication kind, size_t ranks, int64_t bytes,
                  double model) {
  std::optional<cost::Figure> known;
  if (on.profile)
    known = on.profile->link(link_name(kind), static_cast<int>(ranks), static_cast<double>(bytes));
  return known.value_or(cost::Figure{model, cost::Origin::modelled});
}

template <class Ranks>
cost::Figure collective(Communication kind, const TensorType& whole, const Ranks& ranks,
                        const cost::Hardware& on) {
  const int64_t elements = numel(whole.shape), width = size_of(whole.dtype);
  return link(on, kind, ranks.size(), elements * width,
              cost::collective_seconds(kind, elements, width, static_cast<int>(ranks.size()),
                                       cost::crosses_hosts(ranks, on.links), on.links));
}

cost::Figure communicate(const Program& program, const Instr& instr, Communication kind,
                         const cost::Hardware& on) {
  const auto& links = on.links;
  if (kind == Communication::send || kind == Communication::move) {
    const auto& moves = argument<Shape>(instr, kind == Communication::send ? "moves" : "sends");
    const TensorType& type = program.slot(reads(instr).at(0)).type;
    const size_t stride = 1 + 2 * type.shape.size();
    bool across = false;
    int messages = 0;
    for (size_t i = 0; i < moves.size(); i += stride) {
      if (moves[i] == program.rank) continue;
      ++messages;
      across = across || cost::crosses_hosts(Shape{moves[i], program.rank}, links);
    }
    if (messages == 0) return {};
    const int64_t bytes =
        moved_elements(moves, type.shape.size(), program.rank) * size_of(type.dtype);
    return link(on, Communication::send, 2, bytes,
                cost::seconds_of(bytes, messages, across, links));
  }
  const Shape& group = ranks_of(instr);
  if (find_arg(instr, "dims") !=
      nullptr) {  // several in one message: at most as long as each alone
    cost::Figure sum;
    for (int slot : reads(instr)) {
      const cost::Figure one = collective(kind, program.slot(slot).type, group, on);
      sum.seconds += one.seconds;
      sum.origin = one.origin;
    }
    return sum;
  }
  const int slot = kind == Communication::all_gather ? instr.outs.at(0) : reads(instr).at(0);
  return collective(kind, program.slot(slot).type, group, on);
}

double flops_of(const Program& program, const Instr& instr) {
  std::string_view op = instr.op;
  std::vector<NamedArg> args = instr.args;
  double factor = 1;
  if (is_again(instr)) {  // forward, and as much again for each of its two kinds of gradients
    op.remove_prefix(kAgain.size());
    std::erase_if(args,
                  [](const NamedArg& a) { return a.name == "grad_outputs" || a.name == "needs"; });
    factor = 3;
  }
  const std::string functional = operators::functional_form(op).value_or(std::string(op));
  const operators::Record* record = operators::find(functional);
  if (record == nullptr || (!record->flops && !record->infer)) return 0;
  const operators::CallView call(
      functional, args, [&](int id) -> const TensorType& { return program.slot(id).type; });
  return factor * operators::executed_flops(call);
}

}  // namespace

namespace {

// Of a call by the profile, else by the model.
cost::Figure call(const cost::Hardware& on, double model, const std::function<std::string()>& key) {
  std::optional<cost::Figure> known;
  if (on.profile) known = on.profile->call(key(), std::max(model, on.start));
  return known.value_or(cost::Figure{model, cost::Origin::modelled});
}

Seconds seconds(const cost::Figure& figure, bool communication) {
  Seconds out;
  (communication ? out.communication : out.work) = figure.seconds;
  out.by_origin[static_cast<size_t>(figure.origin)] = figure.seconds;
  return out;
}

cost::Figure accumulation(const TensorType& type, const cost::Hardware& on) {
  const double model = std::max(on.start, 3 * static_cast<double>(bytes_of(type)) / rate_of(on));
  return call(on, model, [&] { return fmt::format("accumulate({})", to_string(type)); });
}

}  // namespace

Work work_of(const Program& program, const Storage& storage, SegmentKind in, const Instr& instr) {
  if (instr.kind == InstrKind::accumulate) {
    const TensorType& type = program.slot(reads(instr)[0]).type;
    return {0, 3 * bytes_of(type), numel(type.shape), type.dtype};
  }
  Work out;
  const operators::Record* record = operators::find(instr.op);
  if (record != nullptr && is_view(record->view) && in != SegmentKind::forward) return out;
  if (!storage.allocates(instr) && !is_in_place(instr)) return out;
  const auto count = [&](const TensorType& type) {
    out.bytes += bytes_of(type);
    out.largest = std::max(out.largest, numel(type.shape));
  };
  for (int in : reads(instr)) count(program.slot(in).type);
  bool first = true;
  for (int made : instr.outs) {
    if (made < 0) continue;
    const TensorType& type = program.slot(made).type;
    if (std::exchange(first, false)) out.dtype = type.dtype;
    count(type);
  }
  out.flops = flops_of(program, instr);
  return out;
}

double collective_seconds(Communication kind, const TensorType& whole,
                          const std::vector<int>& ranks, const cost::Hardware& on) {
  return collective(kind, whole, ranks, on).seconds;
}

double accumulate_seconds(const TensorType& type, const cost::Hardware& on) {
  return accumulation(type, on).seconds;
}

Seconds seconds_of(const Program& program, const Storage& storage, SegmentKind in,
                   const Instr& instr, const cost::Hardware& on) {
  if (instr.kind == InstrKind::accumulate)
    return seconds(accumulation(program.slot(reads(instr)[0]).type, on), false);
  if (instr.kind != InstrKind::call) return {};
  const Communication kind = communication_of(instr);
  if (kind == Communication::receive) return {};
  if (kind != Communication::none && kind != Communication::value_chunk)
    return seconds(communicate(program, instr, kind, on), true);
  const operators::Record* record = operators::find(instr.op);
  if (record != nullptr && record->hook) return {};
  const Work work = work_of(program, storage, in, instr);
  const double model =
      work.bytes == 0 ? 0 : cost::roofline(work.flops, work.bytes, work.largest, work.dtype, on);
  return seconds(call(on, model, [&] { return call_key(program, storage, instr); }), false);
}

StepPart step_part(const TensorType& weight, const std::vector<int>& reduce,
                   const cost::Hardware& on, const StepSettings& settings) {
  const int64_t bytes = bytes_of(weight);
  // The update reads weight, gradient and state and writes weight and state.
  double update = (3 + 2 * settings.state) / rate_of(on);
  if (on.profile)
    if (const auto known = on.profile->step(settings.optimizer)) update = known->seconds_per_byte;
  const int ranks = static_cast<int>(reduce.size());
  double sum = cost::gradient_sum_seconds(bytes, ranks, cost::crosses_hosts(reduce, on.links),
                                          settings.bucket_bytes, on.links);
  if (on.profile && ranks > 1)  // gradients share buckets: each pays for what it fills of one
    if (const auto known =
            on.profile->link("all_reduce", ranks, static_cast<double>(settings.bucket_bytes)))
      sum =
          known->seconds * static_cast<double>(bytes) / static_cast<double>(settings.bucket_bytes);
  return {sum, update * static_cast<double>(bytes)};
}

namespace {

// Elements of a weight whose optimizer state a rank has, which shares its weights so.
int64_t slot_elements(const Program& program, const std::vector<Share>& shares, int rank,
                      size_t parameter) {
  const Slot& slot = program.slot(program.parameters[parameter]);
  const int64_t all = numel(slot.type.shape);
  if (shares.empty()) return all;
  const Share& share = shares[parameter];
  if (share.over.empty() || share.sharded() || share.length == 0) return all;
  const auto at = std::find(share.over.begin(), share.over.end(), rank);
  return all / share.length * share.part(static_cast<int>(at - share.over.begin())).length();
}

// Weights of a program that get gradients.
std::set<int> trained(const Program& program) {
  std::set<int> out;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs)
      if (instr.kind == InstrKind::accumulate) out.insert(instr.target);
  return out;
}

// Bytes of weights whose optimizer state a rank has.
int64_t updated(const Program& program, const std::vector<Share>& shares, int rank) {
  const std::set<int> weights = trained(program);
  int64_t bytes = 0;
  for (size_t i = 0; i < program.parameters.size(); ++i)
    if (const int slot = program.parameters[i]; weights.contains(slot))
      bytes += slot_elements(program, shares, rank, i) * size_of(program.slot(slot).type.dtype);
  return bytes;
}

// The Program of the rank that updates most of a class. Parts of weights are longest on its first
// one; undivided weights go to any.
Program busiest(const Skeleton& skeleton, const std::vector<int>& ranks) {
  Program first = skeleton.project(ranks[0]).program;
  if (std::none_of(first.shares.begin(), first.shares.end(),
                   [](const Share& share) { return share.owner >= 0; }))
    return first;
  int64_t most = -1;
  int chosen = ranks[0];
  for (int rank : ranks)
    if (const int64_t own = updated(first, skeleton.shares(rank), rank); own > most) {
      most = own;
      chosen = rank;
    }
  return chosen == ranks[0] ? first : skeleton.project(chosen).program;
}

StepPart once_of(const Program& program, const cost::Hardware& on, const StepSettings& settings) {
  StepPart out;
  const std::set<int> weights = trained(program);
  for (size_t i = 0; i < program.parameters.size(); ++i) {
    if (!weights.contains(program.parameters[i])) continue;
    const TensorType type = program.slot(program.parameters[i]).type;
    const StepPart part = step_part(
        type, program.shares.empty() ? std::vector<int>{} : program.shares[i].reduce, on, settings);
    out.sum += part.sum;
    const int64_t elements = numel(type.shape);
    if (elements > 0)
      out.update += part.update *
                    static_cast<double>(slot_elements(program, program.shares, program.rank, i)) /
                    static_cast<double>(elements);
  }
  const Storage storage(program);
  for (const Instr& instr : program.casts)
    out.update += seconds_of(program, storage, SegmentKind::forward, instr, on).all();
  for (const GradientSet& set : program.sets) {
    if (set.over.empty() || set.zero >= plan::Zero::weights || set.parameters.empty()) continue;
    const int64_t n = static_cast<int64_t>(set.over.size()), all = n * chunk_of(program, set);
    const int64_t width = size_of(program.slot(set.parameters[0]).type.dtype);
    const bool across = cost::crosses_hosts(set.over, on.links);
    for (const auto kind : {Communication::all_gather, Communication::reduce_scatter})
      if (kind == Communication::all_gather || set.scatter)
        out.sum +=
            link(on, kind, set.over.size(), all * width,
                 cost::collective_seconds(kind, all, width, static_cast<int>(n), across, on.links))
                .seconds;
  }
  return out;
}

// Seconds of the segments by stage and kind; `spent` takes what each call has of them.
std::map<std::pair<int, SegmentKind>, Seconds> segments_of(const Program& program,
                                                           const cost::Hardware& on,
                                                           std::vector<Spent>& spent) {
  const Storage storage(program);
  std::map<std::pair<int, SegmentKind>, Seconds> out;
  std::map<std::tuple<int, int, bool, std::string>, Spent> calls;
  for (const Segment& segment : program.segments) {
    Seconds& sum = out[{segment.stage, segment.kind}];
    for (const Instr& instr : segment.instrs) {
      const Seconds seconds = seconds_of(program, storage, segment.kind, instr, on);
      sum += seconds;
      if (seconds.all() == 0) continue;
      const bool communication = seconds.communication > 0;
      Spent& call = calls[{segment.stage, instr.node, communication,
                           communication || instr.node < 0 ? instr.op : std::string()}];
      call.stage = segment.stage;
      call.node = instr.node;
      call.communication = communication;
      if (communication || instr.node < 0) call.op = instr.op;
      (segment.kind == SegmentKind::forward ? call.forward : call.backward) += seconds.all();
      call.interpolated += seconds.by_origin[static_cast<size_t>(cost::Origin::interpolated)];
      call.modelled += seconds.by_origin[static_cast<size_t>(cost::Origin::modelled)];
      ++call.instrs;
    }
  }
  for (auto& [key, call] : calls) spent.push_back(std::move(call));
  return out;
}

}  // namespace

std::vector<ClassCost> class_costs(const Skeleton& skeleton, const cost::Hardware& on,
                                   const StepSettings& settings) {
  std::vector<ClassCost> out;
  for (const std::vector<int>& ranks : skeleton.classes()) {
    const Program program = busiest(skeleton, ranks);
    ClassCost& of = out.emplace_back(ClassCost{ranks});
    of.parts = segments_of(program, on, of.spent);
    of.once = once_of(program, on, settings);
    if (on.profile)
      if (const auto known = on.profile->step(settings.optimizer)) of.once.update += known->seconds;
    of.memory = memory_parts(program);
    of.updated = updated(program, program.shares, program.rank);
  }
  return out;
}

StepCost step_cost(const std::vector<ClassCost>& classes, const plan::Plan& plan,
                   const StepSettings& settings) {
  StepCost out;
  std::map<std::pair<int, SegmentKind>, Seconds> parts;  // the longest over ranks
  std::optional<Schedule> schedule;
  if (plan.stages > 1) schedule = schedule_of(plan, settings.micro_batches);
  for (const ClassCost& of : classes) {
    RankAccount account{.rank = of.ranks[0], .ranks = static_cast<int>(of.ranks.size())};
    account.spent = of.spent;
    for (const auto& [key, seconds] : of.parts) {
      Seconds& known = parts[key];
      if (seconds.all() > known.all()) known = seconds;
    }
    if (of.once.sum + of.once.update > out.once.sum + out.once.update) out.once = of.once;
    std::vector<Action> order;
    if (schedule) {
      account.row = pipeline_rank(plan, of.ranks[0] % plan.plan_ngpus);
      order = schedule->orders.at(static_cast<size_t>(account.row));
    }
    const Memory memory = lower::memory(of.memory, order);
    account.memory = memory;
    const auto state = static_cast<int64_t>(settings.state * static_cast<double>(of.updated));
    account.state = state;
    out.ranks.push_back(std::move(account));
    if (memory.total() + state <= out.total) continue;
    out.total = memory.total() + state;
    out.resting = out.total - memory.peak;
    out.saved = memory.saved;
  }
  std::vector<StageTimes> times(static_cast<size_t>(plan.stages), {0, 0, 0});
  for (const auto& [key, seconds] : parts) {
    StageTimes& stage = times.at(static_cast<size_t>(key.first));
    (key.second == SegmentKind::forward    ? stage.forward
     : key.second == SegmentKind::backward ? stage.backward
                                           : stage.weight) += seconds.all();
    (key.second == SegmentKind::forward ? out.forward : out.backward) += seconds;
  }
  if (schedule) {
    out.line = time_line(*schedule, times);
  } else {
    const StageTimes& one = times[0];
    const double backward = one.backward + one.weight, part = one.forward + backward;
    std::vector<Timed>& line = out.line.emplace_back();
    for (int i = 0; i < settings.micro_batches; ++i) {
      line.push_back({{'F', 0, i}, i * part, i * part + one.forward});
      if (backward > 0) line.push_back({{'B', 0, i}, i * part + one.forward, (i + 1) * part});
    }
  }
  for (size_t i = 0; i < classes.size(); ++i) {
    std::vector<Action> order;
    for (const Timed& part : out.line.at(static_cast<size_t>(out.ranks[i].row)))
      order.push_back(part.action);
    out.ranks[i].course = course(classes[i].memory, order);
  }
  double last = 0;
  for (const auto& line : out.line)
    for (const Timed& t : line) last = std::max(last, t.stop);
  out.seconds = last + out.once.sum + out.once.update;
  return out;
}

StepCost simulate(const Skeleton& skeleton, const plan::Plan& plan, const cost::Hardware& on,
                  const StepSettings& settings) {
  return step_cost(class_costs(skeleton, on, settings), plan, settings);
}

}  // namespace nns::lower
