// What a rank does at one instruction: operators by `evaluate`, gradients, buffers, messages.
#include <algorithm>
#include <cmath>

#include "support/operators.h"
#include "support/rank.h"

namespace nns::test {

using namespace lower;

namespace {

constexpr int64_t kMove = -1;  // the tag of what moves between the layouts of one value

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

}  // namespace

void Rank::finish(const Instr& instr) {
  if (instr.kind == InstrKind::call) {
    measured.peak = std::max(measured.peak, held(pass()) + begun() + bytes_of_casts(program_));
    if (inputs_.watch) show(instr);
    if (is_in_place(instr)) pass().slots.erase(reads(instr)[0]);
  }
  ++next_;
  posted_ = false;
}

void Rank::show(const Instr& instr) {
  const auto& instrs = segment().instrs;
  const auto before =
      std::count_if(instrs.begin(), instrs.begin() + static_cast<std::ptrdiff_t>(next_),
                    [](const Instr& other) { return other.kind == InstrKind::call; });
  for (size_t i = 0; i < instr.outs.size(); ++i)
    if (instr.outs[i] >= 0)
      inputs_.watch({number_, global(tasks_[task_].micro), static_cast<int>(before),
                     static_cast<int>(i), &segment(), copy(read(instr.outs[i]))});
}

bool Rank::execute(const Instr& instr, Mail& mail) {
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
  if (instr.op == "comm::rotate" || instr.op == "comm::zigzag") return turn(instr, mail);
  if (instr.op == "comm::value_chunk") {
    const Array x = operand(instr);
    const Shape& group = argument<Shape>(instr, "group");
    const bool first = *std::min_element(group.begin(), group.end()) == number_;
    store(instr.outs[0], first ? copy(x) : Array::filled(x.shape));
    return true;
  }
  if (instr.op == operators::kToHost || instr.op == operators::kFromHost) {
    store(instr.outs[0], copy(operand(instr)));
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

void Rank::accumulate(const Instr& instr) {
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

void Rank::post(const Array& x, const Shape& moves, int64_t tag, int micro, Mail& mail,
                const std::string& op, size_t ranks) {
  int64_t elements = 0;
  for (const Region& r : regions(moves, x.rank())) {
    const Array part = copy(view_of(x, r.box));
    if (r.peer != number_) elements += part.count();
    mail[{number_, r.peer, tag, micro}].push_back(part);
  }
  count(op, ranks, elements, x.dtype);
}

bool Rank::collect(int out, const Shape& moves, int64_t tag, int micro, Mail& mail) {
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

bool Rank::send(const Instr& instr, Mail& mail) {
  post(operand(instr), argument<Shape>(instr, "moves"), argument<int64_t>(instr, "tag"),
       tasks_[task_].micro, mail, "send");
  return true;
}

bool Rank::receive(const Instr& instr, Mail& mail) {
  return collect(instr.outs[0], argument<Shape>(instr, "moves"), argument<int64_t>(instr, "tag"),
                 tasks_[task_].micro, mail);
}

bool Rank::move(const Instr& instr, Mail& mail) {
  if (!posted_) post(operand(instr), argument<Shape>(instr, "sends"), kMove, 0, mail, "move");
  posted_ = true;
  return collect(instr.outs[0], argument<Shape>(instr, "receives"), kMove, 0, mail);
}

// What goes round a ring, or is folded over it: whole pieces, or halves of them.
bool Rank::turn(const Instr& instr, Mail& mail) {
  const Shape& ring = argument<Shape>(instr, "ring");
  const auto n = static_cast<int64_t>(ring.size());
  const int64_t at = std::find(ring.begin(), ring.end(), number_) - ring.begin();
  const auto dim = static_cast<size_t>(argument<int64_t>(instr, "dim"));
  const auto move_of = [&](int64_t peer, const Shape& shape, int64_t start, int64_t length) {
    Shape out{ring[static_cast<size_t>(peer)]};
    for (size_t d = 0; d < shape.size(); ++d)
      for (int64_t x : {d == dim ? start : 0, d == dim ? length : shape[d]}) out.push_back(x);
    return out;
  };
  const Array x = operand(instr);
  const Shape& to = program_.slot(instr.outs[0]).type.shape;
  Shape sends, receives;
  if (instr.op == "comm::rotate") {
    sends = move_of((at + 1) % n, x.shape, 0, x.shape[dim]);
    receives = move_of((at + n - 1) % n, to, 0, to[dim]);
  } else {
    const Arg* flag = find_arg(instr, "back");
    const bool back = flag != nullptr && std::get<bool>(*flag);
    const int64_t half = x.shape[dim] / 2;
    const Shape in_order{2 * at, 2 * at + 1}, folded{at, 2 * n - 1 - at};
    const auto halves = [&](bool of_text, const Shape& shape) {
      Shape out;
      for (size_t i = 0; i < 2; ++i) {
        const int64_t h = (of_text ? in_order : folded)[i];
        const int64_t other = !of_text ? h / 2 : h < n ? h : 2 * n - 1 - h;
        const Shape one = move_of(other, shape, static_cast<int64_t>(i) * half, half);
        out.insert(out.end(), one.begin(), one.end());
      }
      return out;
    };
    sends = halves(!back, x.shape);
    receives = halves(back, to);
  }
  if (!posted_) post(x, sends, kMove, 0, mail, instr.op.substr(6), ring.size());
  posted_ = true;
  return collect(instr.outs[0], receives, kMove, 0, mail);
}

}  // namespace nns::test
