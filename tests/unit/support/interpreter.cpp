// The interpreter: ranks take turns; one that waits for others is passed over.
#include "support/interpreter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <set>
#include <stdexcept>

#include "lower/schedule/pipeline.h"
#include "lower/uses.h"
#include "support/operators.h"

namespace nns::test {
namespace {

using namespace lower;

template <class... A>
[[noreturn]] void broken(fmt::format_string<A...> f, A&&... args) {
  throw std::runtime_error("interpreter: " + fmt::format(f, std::forward<A>(args)...));
}

Array part_of_array(const Array& whole, const std::vector<Range>& box) {
  Array out = whole;
  for (size_t d = 0; d < box.size(); ++d) out = slice(out, d, box[d].start, box[d].stop);
  return copy(out);
}

// Regions of a list of moves: peer, then start and length per dimension.
struct Region {
  int peer;
  std::vector<Range> box;
};
std::vector<Region> regions(const Shape& moves, size_t dims) {
  std::vector<Region> out;
  for (size_t i = 0; i < moves.size(); i += 1 + 2 * dims) {
    Region r{static_cast<int>(moves[i]), {}};
    for (size_t d = 0; d < dims; ++d)
      r.box.push_back({moves[i + 1 + 2 * d], moves[i + 1 + 2 * d] + moves[i + 2 + 2 * d]});
    out.push_back(std::move(r));
  }
  return out;
}
Array view_of(const Array& x, const std::vector<Range>& box) {
  Array out = x;
  for (size_t d = 0; d < box.size(); ++d) out = slice(out, d, box[d].start, box[d].stop);
  return out;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

using Mail = std::map<std::tuple<int, int, int64_t, int>, std::deque<Array>>;

// A segment to run on a micro-batch.
struct Task {
  const Segment* segment;
  int micro;  // of the unit
};

// One micro-batch's tensors in one stage.
struct Pass {
  std::map<int, Array> slots;
  std::map<int, Array> buffers;  // as its forward found them
};

class Rank {
 public:
  Rank(const Programs& all, size_t number, const Inputs& inputs)
      : all_(all),
        program_(all.ranks[number].program),
        number_(static_cast<int>(number)),
        inputs_(inputs) {
    for (const auto* list : {&program_.parameters, &program_.buffers})
      for (int id : *list) {
        const Slot& slot = program_.slot(id);
        const Array& whole = inputs.weights.at(slot.name);
        lasting_[id] = slot.box.empty() ? copy(whole) : part_of_array(whole, slot.box);
      }
    for (size_t i = 0; i < program_.constants.size(); ++i)
      lasting_[program_.constants[i]] = constant(i);
    plan_tasks();
  }

  bool done() const { return task_ == tasks_.size(); }
  const Program& program() const { return program_; }
  int number() const { return number_; }

  const Instr* current() const {
    if (done()) return nullptr;
    const auto& instrs = tasks_[task_].segment->instrs;
    return next_ < instrs.size() ? &instrs[next_] : nullptr;
  }
  const Segment& segment() const { return *tasks_[task_].segment; }

  // Goes on until it waits for others; whether it did anything.
  bool run(Mail& mail) {
    bool moved = false;
    while (!done()) {
      if (!entered_) enter();
      const Instr* instr = current();
      if (instr == nullptr) {
        leave();
      } else if (is_collective(*instr)) {
        return moved;
      } else if (!execute(*instr, mail)) {
        return moved;
      } else {
        finish(*instr);
      }
      moved = true;
    }
    return moved;
  }

  Array operand(const Instr& instr) const { return read(reads(instr).at(0)); }
  // The result of a collective that all members made together.
  void complete(Array result) {
    const Instr& instr = *current();
    store(instr.outs.at(0), std::move(result));
    finish(instr);
  }
  void count(const std::string& op, size_t ranks, int64_t elements, DType dtype) {
    const std::string key = fmt::format("{} {} {}", segment().name, op, ranks);
    measured.sent[key] += elements * size_of(dtype);
    ++measured.calls[key];
  }
  void count_step(size_t ranks, int64_t bytes) {
    const std::string key = fmt::format("step all_reduce {}", ranks);
    measured.sent[key] += bytes;
    ++measured.calls[key];
  }

  std::map<int, Array> gradients;                    // by parameter slot
  std::map<int, std::map<int, Array>> new_contents;  // of buffers: slot, micro-batch
  std::map<int, double> decays;                      // of buffers
  std::map<int, double> losses;                      // by micro-batch of the unit
  std::map<int, Tensors> results;
  Measured measured;
  const std::map<int, Array>& lasting() const { return lasting_; }

 private:
  int units() const { return all_.plan ? all_.plan->units() : 1; }
  int unit() const { return all_.plan ? number_ / all_.plan->plan_ngpus : 0; }
  int global(int micro) const { return micro * units() + unit(); }

  Array constant(size_t i) const {
    const TensorType& type = program_.slot(program_.constants[i]).type;
    const std::string& bytes = program_.constant_data[i];
    const auto width = static_cast<size_t>(size_of(type.dtype));
    Array out = Array::filled(type.shape, 0, type.dtype);
    for (size_t k = 0; k < out.memory->data.size(); ++k) {
      const auto get = [&](auto x) {
        std::memcpy(&x, bytes.data() + k * width, sizeof x);
        return static_cast<double>(x);
      };
      out.memory->data[k] = type.dtype == DType::f64   ? get(double())
                            : type.dtype == DType::f32 ? get(float())
                            : type.dtype == DType::i64 ? get(int64_t())
                                                       : get(uint8_t());
    }
    return out;
  }

  void plan_tasks() {
    const int micros = static_cast<int>(inputs_.samples.size()) / units();
    std::vector<Action> order;
    if (all_.plan && all_.plan->stages > 1) {
      const Schedule schedule =
          program_.training ? schedule_of(*all_.plan, micros) : inference_of(*all_.plan, micros);
      order = schedule.orders.at(
          static_cast<size_t>(pipeline_rank(*all_.plan, number_ % all_.plan->plan_ngpus)));
    } else {
      for (int k = 0; k < micros; ++k) {
        order.push_back({'F', 0, k});
        if (program_.training) order.push_back({'B', 0, k});
      }
    }
    for (const Action& a : order) {
      const auto at =
          std::find_if(program_.segments.begin(), program_.segments.end(), [&](const Segment& s) {
            return "FBW"[static_cast<size_t>(s.kind)] == a.kind && s.stage == a.stage;
          });
      if (at == program_.segments.end())
        broken("rank {} has no {} of stage {}", number_, a.kind, a.stage);
      tasks_.push_back({&*at, a.micro});
    }
  }

  Pass& pass() { return passes_[{tasks_[task_].segment->stage, tasks_[task_].micro}]; }
  const Pass& pass() const {
    return passes_.at({tasks_[task_].segment->stage, tasks_[task_].micro});
  }

  void enter() {
    entered_ = true;
    next_ = 0;
    const Task& task = tasks_[task_];
    const Segment& segment = *task.segment;
    ++measured.runs[segment.name];
    Pass& pass = this->pass();
    visible_.clear();
    for (int id : segment.saved_in) visible_.insert(id);
    for (int id : segment.inputs) {
      visible_.insert(id);
      const Slot& slot = program_.slot(id);
      const int k = global(task.micro);
      if (segment.kind == SegmentKind::forward)
        pass.slots[id] = inputs_.samples.at(static_cast<size_t>(k)).at(slot.name);
      else
        pass.slots[id] = Array::filled(slot.type.shape, k + 1);
    }
    if (segment.kind != SegmentKind::forward) return;
    for (int id : program_.buffers) {
      const auto& contents = new_contents[id];
      pass.buffers[id] = contents.empty() ? lasting_.at(id) : contents.rbegin()->second;
    }
  }

  void leave() {
    const Task& task = tasks_[task_];
    const Segment& segment = *task.segment;
    Pass& pass = this->pass();
    if (program_.returns(segment)) take_results(task.micro);
    // What is left is handed on, or was to be released.
    std::set<int> handed(segment.saved_out.begin(), segment.saved_out.end());
    bool later = false, last = true;
    for (const Segment& other : program_.segments) {
      if (later && other.stage == segment.stage) {
        last = false;
        handed.insert(other.saved_in.begin(), other.saved_in.end());
      }
      later = later || &other == &segment;
      handed.insert(other.outputs.begin(), other.outputs.end());
      for (const Instr& instr : other.instrs)  // contents of buffers stay until the step's end
        if (instr.kind == InstrKind::update) handed.insert(reads(instr)[0]);
    }
    for (const auto& [id, array] : pass.slots)
      if (is_local(program_, id) && !handed.contains(id))
        broken("rank {}, segment {}: %{} ({}) is never released", number_, segment.name, id,
               program_.slot(id).name);
    for (int id : segment.saved_out)
      if (!pass.slots.contains(id)) broken("rank {}: saved %{} is gone", number_, id);
    if (segment.kind == SegmentKind::forward) measured.saved = std::max(measured.saved, held(pass));
    if (last) passes_.erase({segment.stage, task.micro});
    entered_ = false;
    ++task_;
  }

  void take_results(int micro) {
    Tensors& named = results[micro];
    for (size_t i = 0; i < program_.outputs.size(); ++i)
      take(program_.outputs[i], std::to_string(i + 1), named);
    losses[micro] = named.at("1").item();
  }
  void take(const graph::Nest& nest, const std::string& name, Tensors& out) {
    if (const auto* ref = std::get_if<graph::ValueRef>(&nest.node))
      out[name] = copy(read(ref->id));
    else if (const auto* fields =
                 std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node))
      for (const auto& [key, field] : *fields) take(field, name + "." + key, out);
  }

  Array read(int id) const {
    const SlotRole role = program_.slot(id).role;
    if (role == SlotRole::parameter || role == SlotRole::constant) return lasting_.at(id);
    if (role == SlotRole::buffer) return pass().buffers.at(id);
    const auto it = pass().slots.find(id);
    if (it == pass().slots.end())
      broken(
          "rank {}, segment {}, instruction {}: %{} ({}) is read after its release or before "
          "it is made",
          number_, segment().name, next_, id, program_.slot(id).name);
    if (!visible_.contains(id))
      broken("rank {}, segment {}: %{} ({}) is not handed to it", number_, segment().name, id,
             program_.slot(id).name);
    return it->second;
  }

  void store(int id, Array value) {
    if (id < 0) return;
    const TensorType& type = program_.slot(id).type;
    if (value.shape != type.shape)
      broken("rank {}, segment {}, instruction {}: {} of {} gives {}, not {}", number_,
             segment().name, next_, segment().instrs[next_].op, program_.slot(id).name,
             to_string(value.shape), to_string(type));
    value.dtype = type.dtype;
    if (value.memory->bytes == 0)
      value.memory->bytes = static_cast<int64_t>(value.memory->data.size()) * size_of(type.dtype);
    pass().slots[id] = std::move(value);
    visible_.insert(id);
  }

  // Bytes of what this pass made: memory of weights, samples and gradients is not its own.
  int64_t held(const Pass& pass) const {
    std::set<const Memory*> others, own;
    for (const auto& [id, a] : lasting_) others.insert(a.memory.get());
    for (const auto& [id, a] : gradients) others.insert(a.memory.get());
    for (const auto& [id, a] : pass.buffers) others.insert(a.memory.get());
    for (const auto& [id, a] : pass.slots)
      if (!is_local(program_, id)) others.insert(a.memory.get());
    int64_t bytes = 0;
    for (const auto& [id, a] : pass.slots)
      if (!others.contains(a.memory.get()) && own.insert(a.memory.get()).second)
        bytes += a.memory->bytes;
    return bytes;
  }

  // After an instruction: what it wrote in place has another name.
  void finish(const Instr& instr) {
    if (instr.kind == InstrKind::call) {
      measured.peak = std::max(measured.peak, held(pass()));
      if (is_in_place(instr)) pass().slots.erase(reads(instr)[0]);
    }
    ++next_;
    posted_ = false;
  }

  // Returns false when it has to wait.
  bool execute(const Instr& instr, Mail& mail) {
    switch (instr.kind) {
      case InstrKind::release:
        for (int id : reads(instr)) {
          read(id);
          if (!is_local(program_, id)) broken("release of {}", program_.slot(id).name);
          pass().slots.erase(id);
        }
        return true;
      case InstrKind::accumulate:
        accumulate(instr);
        return true;
      case InstrKind::update: {
        const int id = reads(instr)[0];
        new_contents[instr.target][tasks_[task_].micro] = copy(read(id));
        if (const Arg* decay = find_arg(instr, "decay"))
          decays[instr.target] = std::get<double>(*decay);
        return true;
      }
      case InstrKind::call:
        break;
    }
    if (instr.op.starts_with("hook::")) return true;
    if (instr.op == "comm::send") return send(instr, mail);
    if (instr.op == "comm::receive") return receive(instr, mail);
    if (instr.op == "comm::move") return move(instr, mail);
    if (instr.op == "comm::value_chunk") {
      const Array x = operand(instr);
      const Shape& group = argument<Shape>(instr, "group");
      const bool first = *std::min_element(group.begin(), group.end()) == number_;
      store(instr.outs[0], first ? copy(x) : Array::filled(x.shape));
      return true;
    }
    const Call call(instr.op, instr.args, [&](int id) { return read(id); },
                    {7, 3, global(tasks_[task_].micro)});
    std::vector<Array> results = evaluate(call);
    if (results.size() != instr.outs.size())
      broken("{} gives {} results, not {}", instr.op, results.size(), instr.outs.size());
    for (size_t i = 0; i < results.size(); ++i) store(instr.outs[i], std::move(results[i]));
    return true;
  }

  void accumulate(const Instr& instr) {
    const int id = reads(instr)[0];
    const Array value = read(id);
    const bool owned = is_owned(instr);
    const auto [it, fresh] = gradients.try_emplace(instr.target, value);
    if (!fresh)
      add_into(it->second, value);
    else if (!owned)
      it->second = copy(value);
    if (!owned && fresh) ++measured.copied_gradients;
    if (owned) pass().slots.erase(id);
  }

  static constexpr int64_t kMove = -1;

  void post(const Array& x, const Shape& moves, int64_t tag, int micro, Mail& mail,
            const std::string& op) {
    int64_t elements = 0;
    for (const Region& r : regions(moves, x.rank())) {
      const Array part = copy(view_of(x, r.box));
      if (r.peer != number_) elements += part.count();
      mail[{number_, r.peer, tag, micro}].push_back(part);
    }
    count(op, 0, elements, x.dtype);
  }
  // All regions, or nothing where one has not come.
  bool collect(int out, const Shape& moves, int64_t tag, int micro, Mail& mail) {
    const TensorType& type = program_.slot(out).type;
    std::map<int, size_t> wanted;
    const auto all = regions(moves, type.shape.size());
    for (const Region& r : all) ++wanted[r.peer];
    for (const auto& [peer, n] : wanted)
      if (mail[{peer, number_, tag, micro}].size() < n) return false;
    const Array x = Array::filled(type.shape, NAN, type.dtype);
    for (const Region& r : all) {
      auto& box = mail[{r.peer, number_, tag, micro}];
      assign(view_of(x, r.box), box.front());
      box.pop_front();
    }
    store(out, x);
    return true;
  }

  bool send(const Instr& instr, Mail& mail) {
    post(operand(instr), argument<Shape>(instr, "moves"), argument<int64_t>(instr, "tag"),
         tasks_[task_].micro, mail, "send");
    return true;
  }
  bool receive(const Instr& instr, Mail& mail) {
    return collect(instr.outs[0], argument<Shape>(instr, "moves"), argument<int64_t>(instr, "tag"),
                   tasks_[task_].micro, mail);
  }
  bool move(const Instr& instr, Mail& mail) {
    if (!posted_) post(operand(instr), argument<Shape>(instr, "sends"), kMove, 0, mail, "move");
    posted_ = true;
    return collect(instr.outs[0], argument<Shape>(instr, "receives"), kMove, 0, mail);
  }

  const Programs& all_;
  const Program& program_;
  int number_;
  const Inputs& inputs_;
  std::map<int, Array> lasting_;
  std::vector<Task> tasks_;
  size_t task_ = 0, next_ = 0;
  bool entered_ = false, posted_ = false;
  std::set<int> visible_;
  std::map<std::pair<int, int>, Pass> passes_;  // by stage, micro-batch
};

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
    std::vector<Array> parts;
    for (int64_t member : group) parts.push_back(rank(member).operand(*rank(member).current()));
    for (size_t i = 0; i < group.size(); ++i) complete(rank(group[i]), group, i, parts);
    return true;
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

  // Gradients summed over the ranks that say so, and their bytes by the buckets of each rank.
  void sum_gradients() {
    if (!programs_.plan || !ranks_[0].program().training) return;
    std::vector<std::map<int, Array>> sums(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Program& p = ranks_[r].program();
      for (size_t i = 0; i < p.parameters.size(); ++i) {
        const int id = p.parameters[i];
        const Share& share = p.shares.at(i);
        Array sum = Array::filled(p.slot(id).type.shape, 0, p.slot(id).type.dtype);
        for (int other :
             share.reduce.empty() ? std::vector<int>{static_cast<int>(r)} : share.reduce)
          if (const Array* theirs = gradient(other, p.slot(id).name)) add_into(sum, *theirs);
        sums[r][id] = sum;
      }
      for (const Bucket& bucket : buckets(p, 1 << 20)) {
        int64_t elements = 0;
        for (int id : bucket.parameters) elements += numel(p.slot(id).type.shape);
        const auto at = std::find(bucket.ranks.begin(), bucket.ranks.end(), static_cast<int>(r));
        ranks_[r].count_step(bucket.ranks.size(),
                             all_reduce_sends(elements, static_cast<int64_t>(bucket.ranks.size()),
                                              at - bucket.ranks.begin()) *
                                 size_of(p.slot(bucket.parameters[0]).type.dtype));
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].gradients = std::move(sums[r]);
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
  static void join(Tensors& wholes, Tensors& seen, const Slot& slot, const Array& part) {
    const Shape& shape = slot.box.empty() ? slot.type.shape : slot.whole;
    const auto [whole, fresh] = wholes.try_emplace(slot.name, Array::filled(shape, NAN));
    seen.try_emplace(slot.name, Array::filled(shape));
    const Array into = slot.box.empty() ? whole->second : view_of(whole->second, slot.box);
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
        join(out.gradients, seen, one.program().slot(id), g);
      for (int id : one.program().buffers)
        join(out.buffers, seen, one.program().slot(id), content(one, id, units));
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
