#include "lower/traffic.h"

#include <algorithm>

#include "base/error.h"

namespace nns::lower {
namespace {

int64_t up(int64_t length, int64_t parts) {
  return (length + parts - 1) / parts;
}

// Arguments of one communication call.
class Call {
 public:
  Call(const Program& program, const Instr& instr) : program_(program), instr_(instr) {}

  int64_t integer(const char* name) const { return std::get<int64_t>(value(name)); }
  const Shape& ints(const char* name) const { return std::get<Shape>(value(name)); }
  const TensorType& self() const {
    return program_.slot(std::get<ValueRef>(value("self")).id).type;
  }

 private:
  const Arg& value(const char* name) const {
    for (const NamedArg& a : instr_.args)
      if (a.name == name) return a.value;
    NNS_CHECK(false, "{} has no argument {}", instr_.op, name);
    return instr_.args.front().value;
  }

  const Program& program_;
  const Instr& instr_;
};

// Elements of `shape` with dimension `dim` of another length.
int64_t with_length(Shape shape, int64_t dim, int64_t length) {
  shape.at(static_cast<size_t>(dim)) = length;
  return numel(shape);
}

// Regions of a send: rank, then start and length per dimension.
Traffic sent(const Program& program, const Call& call) {
  Traffic t;
  const Shape& moves = call.ints("moves");
  const size_t dims = call.self().shape.size();
  int64_t elements = 0;
  for (size_t i = 0; i < moves.size(); i += 1 + 2 * dims) {
    if (moves[i] == program.rank) continue;
    int64_t region = 1;
    for (size_t d = 0; d < dims; ++d) region *= moves[i + 2 + 2 * d];
    elements += region;
    ++t.ranks;
  }
  t.bytes = elements * size_of(call.self().dtype);
  return t;
}

Traffic moved(const Program& program, const Instr& instr) {
  const Call call(program, instr);
  if (instr.op == "comm::send") return sent(program, call);
  if (instr.op == "comm::receive") return {};
  Traffic t;
  t.ranks = static_cast<int>(call.ints("group").size());
  const int64_t n = t.ranks;
  const Shape& shape = call.self().shape;
  const auto length = [&](int64_t dim) { return shape.at(static_cast<size_t>(dim)); };
  int64_t elements = 0;
  if (instr.op == "comm::all_reduce") {
    elements = all_reduce_elements(numel(shape), n);
  } else if (instr.op == "comm::all_gather") {
    const int64_t dim = call.integer("dim");
    elements = (n - 1) * with_length(shape, dim, up(call.integer("whole"), n));
  } else if (instr.op == "comm::reduce_scatter" || instr.op == "comm::scatter_gradient") {
    const int64_t dim = call.integer("dim");
    elements = (n - 1) * with_length(shape, dim, up(length(dim), n));
  } else if (instr.op == "comm::all_to_all") {
    const int64_t dim = call.integer("dim"), from = call.integer("from");
    Shape part = shape;
    part.at(static_cast<size_t>(from)) = up(call.integer("whole"), n);
    elements = (n - 1) * with_length(part, dim, up(length(dim), n));
  }
  t.bytes = elements * size_of(call.self().dtype);
  return t;
}

}  // namespace

int64_t all_reduce_elements(int64_t elements, int64_t ranks) {
  return 2 * (ranks - 1) * up(elements, ranks);
}

std::vector<Traffic> traffic(const Program& program) {
  std::vector<Traffic> out;
  std::vector<int> with_gradient;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      if (instr.kind == InstrKind::accumulate) with_gradient.push_back(instr.target);
      if (instr.kind != InstrKind::call || instr.op.rfind("comm::", 0) != 0) continue;
      Traffic t = moved(program, instr);
      t.segment = segment.name;
      t.op = instr.op;
      out.push_back(std::move(t));
    }
  for (size_t i = 0; i < program.shares.size(); ++i) {
    const auto& group = program.shares[i].reduce;
    const int slot = program.parameters[i];
    if (group.empty() ||
        std::find(with_gradient.begin(), with_gradient.end(), slot) == with_gradient.end())
      continue;
    const TensorType& type = program.slot(slot).type;
    const auto n = static_cast<int64_t>(group.size());
    out.push_back({"", "comm::all_reduce", static_cast<int>(n),
                   all_reduce_elements(numel(type.shape), n) * size_of(type.dtype)});
  }
  return out;
}

}  // namespace nns::lower
