// A rank's way through its segments: what it holds at each end, and what it hands on.
#include "support/rank.h"

#include <algorithm>
#include <cstring>

#include "lower/schedule/pipeline.h"
#include "support/operators.h"

namespace nns::test {

using namespace lower;

Rank::Rank(const Programs& all, size_t number, const Inputs& inputs)
    : all_(all),
      program_(all.ranks[number].program),
      number_(static_cast<int>(number)),
      inputs_(inputs),
      on_host_(on_host(program_)) {
  for (const auto* list : {&program_.parameters, &program_.buffers})
    for (int id : *list) {
      const Slot& slot = program_.slot(id);
      const Array& whole = inputs.weights.at(slot.name);
      lasting_[id] = slot.box.empty() ? copy(whole) : copy(view_of(whole, slot.box));
    }
  for (size_t i = 0; i < program_.constants.size(); ++i)
    lasting_[program_.constants[i]] = constant(i);
  for (const Instr& instr : program_.casts) {
    const Call call(instr.op, instr.args, [&](int id) { return lasting_.at(id); }, {});
    Array made = evaluate(call).at(0);
    made.dtype = program_.slot(instr.outs[0]).type.dtype;
    lasting_[instr.outs[0]] = copy(made);
  }
  plan_tasks();
}

Array view_of(const Array& x, const std::vector<Range>& box) {
  Array out = x;
  for (size_t d = 0; d < box.size(); ++d) out = slice(out, d, box[d].start, box[d].stop);
  return out;
}

const Instr* Rank::current() const {
  if (done()) return nullptr;
  const auto& instrs = tasks_[task_].segment->instrs;
  return next_ < instrs.size() ? &instrs[next_] : nullptr;
}

bool Rank::run(Mail& mail) {
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

void Rank::complete(std::vector<Array> results) {
  const Instr& instr = *current();
  for (size_t i = 0; i < results.size(); ++i) store(instr.outs.at(i), std::move(results[i]));
  finish(instr);
}

void Rank::count(const std::string& op, size_t ranks, int64_t elements, DType dtype) {
  const std::string key = fmt::format("{} {} {}", segment().name, op, ranks);
  measured.sent[key] += elements * size_of(dtype);
  ++measured.calls[key];
}

void Rank::count_step(const std::string& op, size_t ranks, int64_t bytes) {
  const std::string key = fmt::format("step {} {}", op, ranks);
  measured.sent[key] += bytes;
  ++measured.calls[key];
}

Array Rank::constant(size_t i) const {
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

void Rank::plan_tasks() {
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

void Rank::enter() {
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

void Rank::leave() {
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

void Rank::take_results(int micro) {
  Tensors& named = results[micro];
  for (size_t i = 0; i < program_.outputs.size(); ++i)
    take(program_.outputs[i], std::to_string(i + 1), named);
  losses[micro] = named.at("1").item();
}

void Rank::take(const graph::Nest& nest, const std::string& name, Tensors& out) {
  if (const auto* ref = std::get_if<graph::ValueRef>(&nest.node))
    out[name] = copy(read(ref->id));
  else if (const auto* fields =
               std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node))
    for (const auto& [key, field] : *fields) take(field, name + "." + key, out);
}

Array Rank::read(int id) const {
  const SlotRole role = program_.slot(id).role;
  if (role == SlotRole::parameter || role == SlotRole::constant || role == SlotRole::cast)
    return lasting_.at(id);
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

void Rank::store(int id, Array value) {
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

int64_t Rank::begun() const {
  int64_t bytes = 0;
  for (const Ahead& mark : segment().ahead) {
    if (mark.after > next_) continue;
    const BlockRun& run = segment().blocks[mark.block];
    for (const size_t i : gathers_of(program_, segment(), run))
      if (i > next_) bytes += bytes_of(program_.slot(segment().instrs[i].outs[0]).type);
  }
  return bytes;
}

int64_t Rank::held(const Pass& pass) const {
  std::set<const Memory*> others, own;
  for (const auto& [id, a] : lasting_) others.insert(a.memory.get());
  for (const auto& [id, a] : gradients) others.insert(a.memory.get());
  for (const auto& [id, a] : pass.buffers) others.insert(a.memory.get());
  for (const auto& [id, a] : pass.slots)
    if (!is_local(program_, id)) others.insert(a.memory.get());
  int64_t bytes = 0;
  for (const auto& [id, a] : pass.slots)
    if (!on_host_.contains(id) && !others.contains(a.memory.get()) &&
        own.insert(a.memory.get()).second)
      bytes += a.memory->bytes;
  return bytes;
}

}  // namespace nns::test
