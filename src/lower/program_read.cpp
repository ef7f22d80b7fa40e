// The JSON form of a Program, read: bytes that anybody may have changed.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "graph/json_reader.h"
#include "lower/program_json.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

using graph::Fields;
using graph::Item;
using graph::list_reader;
using graph::pair_reader;
using graph::Path;
using graph::read_bool;
using graph::read_id;
using graph::read_int;
using graph::read_list;
using graph::read_string;
using graph::refuse;

constexpr int64_t kMost = int64_t{1} << 60;  // elements of a tensor

int read_count(const Item& j, const Path& path) {
  const int n = read_id(j, path);
  if (n < 0) refuse(path, j, "0 or more");
  return n;
}

std::vector<int> read_counts(const Item& j, const Path& path) {
  return read_list(j, path, read_count);
}

uint64_t read_hash(const Item& j, const Path& path) {
  const std::string text = read_string(j, path);
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    refuse(path, j, "16 hexadecimal digits");
  return std::stoull(text, nullptr, 16);
}

Shape read_shape(const Item& j, const Path& path) {
  Shape shape = read_list(j, path, read_int);
  int64_t elements = 1;
  for (const int64_t length : shape) {
    if (length < 0 || length > kMost || (length > 0 && elements > kMost / length))
      refuse(path, j, "a shape");
    elements *= std::max<int64_t>(length, 1);
  }
  return shape;
}

template <class Kind, size_t N>
auto kind_reader(const std::array<Kind, N>& all) {
  return [&all](const Item& j, const Path& path) {
    for (const Kind kind : all)
      if (j.equals(name_of(kind))) return kind;
    refuse(path, j, "one of the kinds");
  };
}

constexpr std::array kRoles{SlotRole::input,    SlotRole::parameter, SlotRole::buffer,
                            SlotRole::constant, SlotRole::cast,      SlotRole::activation,
                            SlotRole::gradient};
constexpr std::array kInstrs{InstrKind::call, InstrKind::release, InstrKind::accumulate,
                             InstrKind::update};
constexpr std::array kSteps{StepKind::scatter, StepKind::sum,    StepKind::scale, StepKind::norm,
                            StepKind::clip,    StepKind::update, StepKind::gather};

// A field of an object, read into a member; an optional one may be left out.
template <class T, class M, class Read>
auto field(const char* key, M T::* member, Read read) {
  return [=](Fields& f, T& out) { out.*member = static_cast<M>(f.take(key, read)); };
}
template <class T, class M, class Read>
auto optional(const char* key, M T::* member, Read read) {
  return [=](Fields& f, T& out) {
    if (f.has(key)) out.*member = static_cast<M>(f.take(key, read));
  };
}
// The reader of an object that has these fields and no others.
template <class T, class... F>
auto object(F... fields) {
  return [=](const Item& j, const Path& path) {
    Fields f(j, path);
    T out;
    (fields(f, out), ...);
    f.done();
    return out;
  };
}

SourceLoc read_place(const Item& j, const Path& path) {
  if (!j.is_list() || j.size() != 2) refuse(path, j, "a file and a line");
  return {read_string(j.at(0), path), read_count(j.at(1), path)};
}

std::vector<Range> read_box(const Item& j, const Path& path) {
  std::vector<Range> box;
  for (const auto& [start, stop] : pair_reader(read_int, read_int)(j, path))
    box.push_back({start, stop});
  return box;
}

Slot read_slot(const Item& j, const Path& path) {
  const auto type = [](Fields& f, Slot& out) {
    out.type = {f.take("shape", read_shape), f.take("dtype", graph::read_dtype)};
  };
  Slot slot = object<Slot>(
      field("name", &Slot::name, read_string), field("role", &Slot::role, kind_reader(kRoles)),
      type, optional("whole", &Slot::whole, read_shape), optional("box", &Slot::box, read_box),
      optional("gradient", &Slot::gradient, read_shape))(j, path);
  if (!slot.gradient.empty() && slot.gradient.size() != slot.type.shape.size())
    refuse(Path(path, "gradient"), *j.find("gradient"), "a part of the parameter");
  if (!j.find("whole") && !j.find("box")) return slot;
  const Shape& shape = slot.type.shape;
  if (shape.empty() || slot.whole.size() != shape.size() || slot.box.size() != shape.size())
    refuse(path, j, "a part with as many dimensions as the whole");
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto [start, stop] = slot.box[d];
    if (start < 0 || stop > slot.whole[d] || stop - start != shape[d])
      refuse(Path(path, "box"), *j.find("box"), "a part of the whole");
  }
  return slot;
}

SegmentKind read_segment_kind(const Item& j, const Path& path) {
  for (size_t i = 0; i < std::size(kSegmentKinds); ++i)
    if (j.equals(kSegmentKinds[i])) return static_cast<SegmentKind>(i);
  refuse(path, j, "forward, backward or weight");
}

char read_letter(const Item& j, const Path& path) {
  for (const char letter : {'F', 'B', 'W'})
    if (j.equals(std::string(1, letter))) return letter;
  refuse(path, j, "F, B or W");
}

const auto read_instr = object<Instr>(
    field("kind", &Instr::kind, kind_reader(kInstrs)), optional("op", &Instr::op, read_string),
    field("args", &Instr::args, list_reader(graph::read_named_arg)),
    optional("outs", &Instr::outs, list_reader(read_id)),
    optional("target", &Instr::target, read_count), optional("into", &Instr::into, read_count),
    optional("node", &Instr::node, read_count), optional("module", &Instr::module, read_string),
    optional("place", &Instr::loc, read_place));

const auto read_block = object<BlockRun>(
    field("body", &BlockRun::body, read_count), field("first", &BlockRun::first, read_count),
    field("last", &BlockRun::last, read_count), field("path", &BlockRun::path, read_string));

const auto read_loop =
    object<Loop>(field("first", &Loop::first, read_count), field("size", &Loop::size, read_count),
                 field("count", &Loop::count, read_count));

const auto read_sum = object<SumStart>(field("after", &SumStart::after, read_count),
                                       field("set", &SumStart::set, read_count));

const auto read_ahead = object<Ahead>(field("after", &Ahead::after, read_count),
                                      field("block", &Ahead::block, read_count));

const auto read_segment = object<Segment>(
    field("name", &Segment::name, read_string), field("kind", &Segment::kind, read_segment_kind),
    field("stage", &Segment::stage, read_count), field("inputs", &Segment::inputs, read_counts),
    field("outputs", &Segment::outputs, read_counts),
    field("saved_in", &Segment::saved_in, read_counts),
    field("saved_out", &Segment::saved_out, read_counts),
    field("instrs", &Segment::instrs, list_reader(read_instr)),
    field("blocks", &Segment::blocks, list_reader(read_block)),
    field("loops", &Segment::loops, list_reader(read_loop)),
    field("sums", &Segment::sums, list_reader(read_sum)),
    optional("ahead", &Segment::ahead, list_reader(read_ahead)));

const auto read_share = object<Share>(
    field("reduce", &Share::reduce, read_counts), field("holders", &Share::holders, read_count),
    optional("zero", &Share::zero, read_count), optional("over", &Share::over, read_counts),
    optional("dim", &Share::dim, read_count), optional("length", &Share::length, read_count),
    optional("owner", &Share::owner, read_count), optional("scatter", &Share::scatter, read_bool));

const auto read_fallback = object<Fallback>(field("op", &Fallback::op, read_string),
                                            field("module", &Fallback::module, read_string),
                                            field("place", &Fallback::loc, read_place));

const auto read_set =
    object<GradientSet>(field("ranks", &GradientSet::ranks, read_counts),
                        field("parameters", &GradientSet::parameters, read_counts),
                        optional("zero", &GradientSet::zero, read_count),
                        optional("over", &GradientSet::over, read_counts),
                        optional("scatter", &GradientSet::scatter, read_bool),
                        field("late", &GradientSet::late, read_bool));

const auto read_step = object<StepInstr>(field("kind", &StepInstr::kind, kind_reader(kSteps)),
                                         field("set", &StepInstr::set, read_count),
                                         field("ranks", &StepInstr::ranks, read_counts),
                                         field("holders", &StepInstr::holders, read_count));

const auto read_action = object<Action>(field("kind", &Action::kind, read_letter),
                                        field("stage", &Action::stage, read_count),
                                        field("micro_batch", &Action::micro, read_count));

// Pairs of calls, and how often each is there.
std::map<std::string, int> read_pairs(const Item& j, const Path& path) {
  std::map<std::string, int> pairs;
  for (const auto& [pair, n] : pair_reader(read_string, read_count)(j, path)) pairs[pair] = n;
  return pairs;
}

const auto read_adapters = object<AdapterCount>(field("all", &AdapterCount::all, read_count),
                                                field("paired", &AdapterCount::paired, read_count),
                                                field("pairs", &AdapterCount::pairs, read_pairs));

// --- what fields say of each other ---------------------------------------------------------------

[[noreturn]] void broken(const std::string& what) {
  fail(ErrorKind::state, "[program.from_json] {}", what);
}

class Checker {
 public:
  explicit Checker(const Program& program) : p_(program) {}

  void all() const {
    if (p_.rank >= p_.world) broken(fmt::format("rank {} of {}", p_.rank, p_.world));
    leaves(p_.parameters, SlotRole::parameter);
    leaves(p_.buffers, SlotRole::buffer);
    leaves(p_.constants, SlotRole::constant);
    if (p_.constant_data.size() != p_.constants.size())
      broken(fmt::format("{} constants with data for {}", p_.constants.size(),
                         p_.constant_data.size()));
    for (size_t i = 0; i < p_.constants.size(); ++i)
      if (static_cast<int64_t>(p_.constant_data[i].size()) !=
          bytes_of(p_.slot(p_.constants[i]).type))
        broken(fmt::format("constant {} has {} bytes", i, p_.constant_data[i].size()));
    for (const Instr& i : p_.casts) {
      instr(i);
      const std::vector<int> in = reads(i);
      if (i.kind != InstrKind::call || in.size() != 1 || in[0] < 0 || i.outs.size() != 1 ||
          i.outs[0] < 0)
        broken(fmt::format("a cast {} of {} parameters", i.op, in.size()));
      leaves(in, SlotRole::parameter);
      leaves(i.outs, SlotRole::cast);
    }
    if (!p_.shares.empty() && p_.shares.size() != p_.parameters.size())
      broken(
          fmt::format("{} parameters with shares for {}", p_.parameters.size(), p_.shares.size()));
    for (size_t i = 0; i < p_.shares.size(); ++i) {
      const Share& s = p_.shares[i];
      for (const auto* list : {&s.reduce, &s.over})
        for (int rank : *list)
          if (rank >= p_.world) broken(fmt::format("a share of rank {} of {}", rank, p_.world));
      shards(s, p_.slot(p_.parameters[i]));
    }
    if (p_.segments.empty()) broken("no segment");
    for (const Segment& s : p_.segments) segment(s);
    for (const GradientSet& set : p_.sets) {
      leaves(set.parameters, SlotRole::parameter);
      ranks(set.ranks);
      ranks(set.over);
    }
    for (const StepInstr& instr : p_.step) {
      if (static_cast<size_t>(instr.set) >= p_.sets.size())
        broken(fmt::format("{} of set {} of {}", name_of(instr.kind), instr.set, p_.sets.size()));
      ranks(instr.ranks);
    }
    for (const Action& action : p_.schedule)
      if (std::none_of(p_.segments.begin(), p_.segments.end(), [&](const Segment& s) {
            return letter_of(s.kind) == action.kind && s.stage == action.stage;
          }))
        broken(fmt::format("{} of stage {} without a segment", action.kind, action.stage));
    for (const graph::Nest& nest : p_.outputs) nested(nest);
    for (const auto* list : {&p_.seeds, &p_.input_gradients})
      for (const auto& [name, id] : *list) slot(id);
  }

 private:
  void slot(int id) const {
    if (static_cast<size_t>(id) >= p_.slots.size())
      broken(fmt::format("slot {} of {}", id, p_.slots.size()));
  }
  void slots(const std::vector<int>& ids) const {
    for (int id : ids) slot(id);
  }
  void leaves(const std::vector<int>& ids, SlotRole role) const {
    slots(ids);
    for (int id : ids)
      if (p_.slot(id).role != role)
        broken(fmt::format("slot {} has the role {}; expected {}", id, name_of(p_.slot(id).role),
                           name_of(role)));
  }
  void ranks(const std::vector<int>& list) const {
    for (int rank : list)
      if (rank >= p_.world) broken(fmt::format("a sum of rank {} of {}", rank, p_.world));
  }
  void shards(const Share& s, const Slot& parameter) const {
    if (s.zero == plan::Zero::none) return;
    const Shape& shape = parameter.type.shape;
    const auto d = static_cast<size_t>(s.dim);
    if (s.zero > plan::Zero::weights || s.over.empty() || d >= shape.size() ||
        s.owner >= static_cast<int>(s.over.size()) || (!s.sharded() && shape[d] != s.length) ||
        s.length < shape[d])
      broken(fmt::format("shards of {} that do not fit it", parameter.name));
  }
  void optional(int id) const {
    if (id >= 0) slot(id);
  }
  void instr(const Instr& i) const {
    for (const NamedArg& a : i.args) {
      if (const auto* ref = std::get_if<ValueRef>(&a.value)) optional(ref->id);
      if (const auto* refs = std::get_if<std::vector<ValueRef>>(&a.value))
        for (const ValueRef& ref : *refs) optional(ref.id);
    }
    for (int out : i.outs) optional(out);
    optional(i.target);
    optional(i.into);
    const bool targets = i.kind == InstrKind::accumulate || i.kind == InstrKind::update;
    if (targets != (i.target >= 0)) broken(fmt::format("{} of slot {}", name_of(i.kind), i.target));
    if (i.kind == InstrKind::call && i.op.empty()) broken("a call of nothing");
  }
  void segment(const Segment& s) const {
    for (const auto* ids : {&s.inputs, &s.outputs, &s.saved_in, &s.saved_out}) slots(*ids);
    for (const Instr& i : s.instrs) instr(i);
    size_t end = 0;
    for (const BlockRun& run : s.blocks) {
      if (run.first < end || run.last < run.first || run.last > s.instrs.size())
        broken(fmt::format("block {} from {} to {} of {}", run.path, run.first, run.last, s.name));
      end = run.last;
    }
    end = 0;
    for (const Loop& loop : s.loops) {
      if (loop.first < end || loop.last() > s.instrs.size())
        broken(fmt::format("a loop from {} to {} of {}", loop.first, loop.last(), s.name));
      end = loop.last();
    }
    for (const Ahead& mark : s.ahead)
      if (mark.after > s.instrs.size() || mark.block >= s.blocks.size())
        broken(fmt::format("gathers of block {} after {} of {}", mark.block, mark.after, s.name));
    for (const SumStart& sum : s.sums)
      if (sum.after > s.instrs.size() || static_cast<size_t>(sum.set) >= p_.sets.size())
        broken(fmt::format("sums up to set {} after {} of {}", sum.set, sum.after, s.name));
  }
  void nested(const graph::Nest& nest) const {
    if (const auto* ref = std::get_if<ValueRef>(&nest.node)) optional(ref->id);
    if (const auto* fields =
            std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node))
      for (const auto& [key, value] : *fields) nested(value);
  }

  const Program& p_;
};

}  // namespace

Lowered from_json(std::string_view text) {
  const graph::JsonText parsed = graph::parse_json(text, "program");
  Fields f(parsed.root(), "program");
  const std::string kind = f.take("kind", read_string);
  if (kind != kProgramKind) refuse("program.kind", fmt::format("\"{}\"", kind), kProgramKind);
  if (const int format = f.take("format", read_count); format > kProgramFormat)
    fail(ErrorKind::state, "[program.from_json] format {} is newer than this program's {}", format,
         kProgramFormat);
  Lowered out;
  Program& p = out.program;
  p.model = f.take("model", read_string);
  p.rank = f.take("rank", read_count);
  p.world = f.take("world", read_count);
  p.training = f.take("training", read_bool);
  p.graph_hash = f.take("graph", read_hash);
  p.slots = f.take("slots", list_reader(read_slot));
  for (size_t i = 0; i < p.slots.size(); ++i) p.slots[i].id = static_cast<int>(i);
  p.parameters = f.take("parameters", read_counts);
  p.buffers = f.take("buffers", read_counts);
  p.constants = f.take("constants", read_counts);
  p.constant_data = f.take("constant_data", list_reader(graph::read_hex));
  if (f.has("casts")) p.casts = f.take("casts", list_reader(read_instr));
  p.shares = f.take("shares", list_reader(read_share));
  p.segments = f.take("segments", list_reader(read_segment));
  p.last_stage = f.take("last_stage", read_count);
  p.tags = f.take("tags", read_count);
  p.sets = f.take("sets", list_reader(read_set));
  p.step = f.take("step", list_reader(read_step));
  p.schedule = f.take("schedule", list_reader(read_action));
  p.micro_batches = f.take("micro_batches", read_count);
  p.outputs = f.take("outputs", list_reader(graph::read_nest));
  p.embedded = f.take("embedded", read_bool);
  p.seeds = f.take("seeds", pair_reader(read_string, read_count));
  p.input_gradients = f.take("input_gradients", pair_reader(read_string, read_count));
  out.fallbacks = f.take("fallbacks", list_reader(read_fallback));
  out.notes = f.take("notes", list_reader(read_string));
  out.warnings = f.take("warnings", list_reader(read_string));
  out.adapters = f.take("adapters", read_adapters);
  f.done();
  Checker(p).all();
  return out;
}

}  // namespace nns::lower
