// The JSON form of a Program, written.
#include "lower/program_json.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "graph/json_reader.h"

namespace nns::lower {
namespace {

using graph::Json;

// Text in the making: programs are long, and there is one per rank, so no tree stands in between.
class Writer {
 public:
  void raw(std::string_view text) { out_ += text; }
  void number(int64_t x) {
    std::array<char, 24> digits;
    out_.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr);
  }
  void text(std::string_view x) {
    const auto plain = [](unsigned char c) { return c >= 32 && c < 127 && c != '"' && c != '\\'; };
    if (std::all_of(x.begin(), x.end(), plain)) {
      out_.append(1, '"').append(x).append(1, '"');
    } else {
      out_ += Json(x).dump(-1, ' ', false, Json::error_handler_t::replace);
    }
  }
  void flag(bool x) { raw(x ? "true" : "false"); }
  template <class List, class F>
  void list(const List& items, F one) {
    raw("[");
    bool first = true;
    for (const auto& item : items) {
      if (!first) raw(",");
      first = false;
      one(item);
    }
    raw("]");
  }
  template <class T>
  void numbers(const std::vector<T>& items) {
    list(items, [this](T x) { number(x); });
  }
  template <class First, class Second>
  void pair(First first, Second second) {
    raw("[");
    first();
    raw(",");
    second();
    raw("]");
  }
  void open() {
    raw("{");
    first_ = true;
  }
  void key(std::string_view name) {
    if (!first_) raw(",");
    first_ = false;
    out_.append(1, '"').append(name).append("\":");
  }
  void close() {
    raw("}");
    first_ = false;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
  bool first_ = true;
};

// As graph::write_arg, the frequent kinds without a tree.
struct ArgWriter {
  Writer& w;
  void id(ValueRef x) const { w.number(x.id); }
  void operator()(std::monostate) const { w.raw("null"); }
  void operator()(ValueRef x) const {
    w.raw("{\"value\":");
    id(x);
    w.raw("}");
  }
  void operator()(const std::vector<ValueRef>& x) const {
    w.raw("{\"values\":");
    w.list(x, [this](ValueRef one) { id(one); });
    w.raw("}");
  }
  void operator()(bool x) const { w.flag(x); }
  void operator()(int64_t x) const { w.number(x); }
  void operator()(const std::string& x) const { w.text(x); }
  void operator()(const Shape& x) const {
    w.raw("{\"integers\":");
    w.numbers(x);
    w.raw("}");
  }
  template <class T>
  void operator()(const T& x) const {
    w.raw(graph::write_arg(x).dump());
  }
};

void write_place(Writer& w, const SourceLoc& loc) {
  w.pair([&] { w.text(loc.file); }, [&] { w.number(loc.line); });
}

void write_slot(Writer& w, const Slot& slot) {
  w.open();
  w.key("name"), w.text(slot.name);
  w.key("role"), w.text(name_of(slot.role));
  w.key("shape"), w.numbers(slot.type.shape);
  w.key("dtype"), w.text(nns::name_of(slot.type.dtype));
  if (!slot.whole.empty()) {
    w.key("whole"), w.numbers(slot.whole);
    w.key("box"), w.list(slot.box, [&](const Range& r) {
      w.pair([&] { w.number(r.start); }, [&] { w.number(r.stop); });
    });
  }
  if (!slot.gradient.empty()) w.key("gradient"), w.numbers(slot.gradient);
  w.close();
}

void write_instr(Writer& w, const Instr& instr) {
  w.open();
  w.key("kind"), w.text(name_of(instr.kind));
  if (!instr.op.empty()) w.key("op"), w.text(instr.op);
  w.key("args"), w.list(instr.args, [&](const NamedArg& a) {
    w.pair([&] { w.text(a.name); }, [&] { std::visit(ArgWriter{w}, a.value); });
  });
  if (!instr.outs.empty()) w.key("outs"), w.numbers(instr.outs);
  if (instr.target >= 0) w.key("target"), w.number(instr.target);
  if (instr.into >= 0) w.key("into"), w.number(instr.into);
  if (instr.node >= 0) w.key("node"), w.number(instr.node);
  if (!instr.module.empty()) w.key("module"), w.text(instr.module);
  if (instr.loc.line > 0) w.key("place"), write_place(w, instr.loc);
  w.close();
}

void write_segment(Writer& w, const Segment& s) {
  w.open();
  w.key("name"), w.text(s.name);
  w.key("kind"), w.text(kSegmentKinds[static_cast<size_t>(s.kind)]);
  w.key("stage"), w.number(s.stage);
  w.key("inputs"), w.numbers(s.inputs);
  w.key("outputs"), w.numbers(s.outputs);
  w.key("saved_in"), w.numbers(s.saved_in);
  w.key("saved_out"), w.numbers(s.saved_out);
  w.key("instrs"), w.list(s.instrs, [&](const Instr& instr) { write_instr(w, instr); });
  w.key("blocks"), w.list(s.blocks, [&](const BlockRun& run) {
    w.open();
    w.key("body"), w.number(run.body);
    w.key("first"), w.number(static_cast<int64_t>(run.first));
    w.key("last"), w.number(static_cast<int64_t>(run.last));
    w.key("path"), w.text(run.path);
    w.close();
  });
  w.key("loops"), w.list(s.loops, [&](const Loop& loop) {
    w.open();
    w.key("first"), w.number(static_cast<int64_t>(loop.first));
    w.key("size"), w.number(static_cast<int64_t>(loop.size));
    w.key("count"), w.number(static_cast<int64_t>(loop.count));
    w.close();
  });
  w.key("sums"), w.list(s.sums, [&](const SumStart& sum) {
    w.open();
    w.key("after"), w.number(static_cast<int64_t>(sum.after));
    w.key("set"), w.number(sum.set);
    w.close();
  });
  if (!s.ahead.empty())
    w.key("ahead"), w.list(s.ahead, [&](const Ahead& mark) {
      w.open();
      w.key("after"), w.number(static_cast<int64_t>(mark.after));
      w.key("block"), w.number(static_cast<int64_t>(mark.block));
      w.close();
    });
  w.close();
}

void write_step(Writer& w, const StepInstr& instr) {
  w.open();
  w.key("kind"), w.text(name_of(instr.kind));
  w.key("set"), w.number(instr.set);
  w.key("ranks"), w.numbers(instr.ranks);
  w.key("holders"), w.number(instr.holders);
  w.close();
}

void write_share(Writer& w, const Share& share) {
  w.open();
  w.key("reduce"), w.numbers(share.reduce);
  w.key("holders"), w.number(share.holders);
  if (share.zero > 0) {
    w.key("zero"), w.number(share.zero);
    w.key("over"), w.numbers(share.over);
    w.key("dim"), w.number(share.dim);
    w.key("length"), w.number(share.length);
    if (share.owner >= 0) w.key("owner"), w.number(share.owner);
    w.key("scatter"), w.flag(share.scatter);
  }
  w.close();
}

void write_fallback(Writer& w, const Fallback& f) {
  w.open();
  w.key("op"), w.text(f.op);
  w.key("module"), w.text(f.module);
  w.key("place"), write_place(w, f.loc);
  w.close();
}

}  // namespace

std::string to_json(const Lowered& lowered) {
  const Program& p = lowered.program;
  Writer w;
  const auto texts = [&](const std::vector<std::string>& list) {
    w.list(list, [&](const std::string& x) { w.text(x); });
  };
  const auto pairs = [&](const auto& list) {
    w.list(list,
           [&](const auto& x) { w.pair([&] { w.text(x.first); }, [&] { w.number(x.second); }); });
  };
  w.open();
  w.key("kind"), w.text(kProgramKind);
  w.key("format"), w.number(kProgramFormat);
  w.key("model"), w.text(p.model);
  w.key("rank"), w.number(p.rank);
  w.key("world"), w.number(p.world);
  w.key("training"), w.flag(p.training);
  w.key("graph"), w.text(hex(p.graph_hash));
  w.key("slots"), w.list(p.slots, [&](const Slot& slot) { write_slot(w, slot); });
  w.key("parameters"), w.numbers(p.parameters);
  w.key("buffers"), w.numbers(p.buffers);
  w.key("constants"), w.numbers(p.constants);
  w.key("constant_data"),
      w.list(p.constant_data, [&](const std::string& bytes) { w.text(graph::to_hex(bytes)); });
  if (!p.casts.empty())
    w.key("casts"), w.list(p.casts, [&](const Instr& instr) { write_instr(w, instr); });
  w.key("shares"), w.list(p.shares, [&](const Share& share) { write_share(w, share); });
  w.key("segments"), w.list(p.segments, [&](const Segment& s) { write_segment(w, s); });
  w.key("last_stage"), w.number(p.last_stage);
  w.key("tags"), w.number(p.tags);
  w.key("sets"), w.list(p.sets, [&](const GradientSet& set) {
    w.open();
    w.key("ranks"), w.numbers(set.ranks);
    w.key("parameters"), w.numbers(set.parameters);
    if (set.zero > 0) {
      w.key("zero"), w.number(set.zero);
      w.key("over"), w.numbers(set.over);
      w.key("scatter"), w.flag(set.scatter);
    }
    w.key("late"), w.flag(set.late);
    w.close();
  });
  w.key("step"), w.list(p.step, [&](const StepInstr& instr) { write_step(w, instr); });
  w.key("schedule"), w.list(p.schedule, [&](const Action& action) {
    w.open();
    w.key("kind"), w.text(std::string(1, action.kind));
    w.key("stage"), w.number(action.stage);
    w.key("micro_batch"), w.number(action.micro);
    w.close();
  });
  w.key("micro_batches"), w.number(p.micro_batches);
  w.key("outputs"), w.list(p.outputs, [&](const graph::Nest& n) { w.raw(graph::to_json(n)); });
  w.key("embedded"), w.flag(p.embedded);
  w.key("seeds"), pairs(p.seeds);
  w.key("input_gradients"), pairs(p.input_gradients);
  w.key("fallbacks"), w.list(lowered.fallbacks, [&](const Fallback& f) { write_fallback(w, f); });
  w.key("notes"), texts(lowered.notes);
  w.key("warnings"), texts(lowered.warnings);
  w.key("adapters"), w.open();
  w.key("all"), w.number(lowered.adapters.all);
  w.key("paired"), w.number(lowered.adapters.paired);
  w.key("pairs"), pairs(lowered.adapters.pairs);
  w.close();
  w.close();
  return w.take();
}

std::string to_json(const Program& program) {
  return to_json(Lowered{program, {}, {}, {}, {}});
}

}  // namespace nns::lower
