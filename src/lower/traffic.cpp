#include "lower/traffic.h"

#include <algorithm>

#include "lower/uses.h"

namespace nns::lower {
namespace {

using operators::Communication;

int64_t part(int64_t length, int64_t n) {  // the longest of n
  return (length + n - 1) / n;
}

int64_t reduced(int64_t elements, const std::vector<int64_t>& ranks, int64_t rank) {
  const int64_t position = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  return sent_by_all_reduce(elements, static_cast<int64_t>(ranks.size()), position);
}

// Elements that leave the rank.
int64_t elements(const Program& program, const Instr& instr, Communication kind,
                 const std::vector<int64_t>& ranks) {
  const auto n = static_cast<int64_t>(ranks.size());
  Shape shape = program.slot(reads(instr).at(0)).type.shape;
  const auto size = [&](const char* dim) -> int64_t& {
    return shape.at(static_cast<size_t>(argument<int64_t>(instr, dim)));
  };
  if (kind == Communication::all_reduce) return reduced(numel(shape), ranks, program.rank);
  if (kind == Communication::rotate) return numel(shape);
  if (kind == Communication::zigzag) {  // a half stays where its place is on this rank
    const int64_t r = std::find(ranks.begin(), ranks.end(), program.rank) - ranks.begin();
    int64_t stay = 0;
    for (const int64_t half : {2 * r, 2 * r + 1}) stay += half == r || half == 2 * n - 1 - r;
    return numel(shape) / 2 * (2 - stay);
  }
  if (const Arg* dims = find_arg(instr, "dims")) {  // a list, each with its own
    int64_t sum = 0;
    const std::vector<int> list = reads(instr);
    for (size_t i = 0; i < list.size(); ++i) {
      Shape own = program.slot(list[i]).type.shape;
      int64_t& length = own.at(static_cast<size_t>(std::get<Shape>(*dims).at(i)));
      length = part(length, n);
      sum += (n - 1) * numel(own);
    }
    return sum;
  }
  if (kind == Communication::all_gather) {
    size("dim") = part(argument<int64_t>(instr, "whole"), n);
  } else if (kind == Communication::all_to_all) {
    size("from") = part(argument<int64_t>(instr, "whole"), n);
    size("dim") = part(size("dim"), n);
  } else if (kind == Communication::exchange) {
    shape[0] = part(shape[0], n);  // what goes to each is data: taken to be alike
  } else {
    size("dim") = part(size("dim"), n);
  }
  return (n - 1) * numel(shape);
}

}  // namespace

int64_t moved_elements(const Shape& moves, size_t dims, int rank) {
  int64_t sum = 0;
  for (size_t i = 0; i < moves.size(); i += 1 + 2 * dims) {
    int64_t n = moves[i] == rank ? 0 : 1;
    for (size_t d = 0; d < dims; ++d) n *= moves[i + 2 + 2 * d];
    sum += n;
  }
  return sum;
}

int64_t sent_by_all_reduce(int64_t elements, int64_t ranks, int64_t position) {
  const int64_t longest = part(elements, ranks);
  const int64_t own = std::clamp<int64_t>(elements - position * longest, 0, longest);
  return elements - own + (ranks - 1) * own;
}

int64_t chunk_of(const Program& program, const GradientSet& set) {
  std::vector<int64_t> sizes(std::max<size_t>(1, set.over.size()), 0);
  for (size_t p = 0; p < program.shares.size(); ++p) {
    const Share& share = program.shares[p];
    const int slot = program.parameters[p];
    if (share.over.empty() ||
        std::find(set.parameters.begin(), set.parameters.end(), slot) == set.parameters.end())
      continue;
    const int64_t row = share.length == 0 ? 0 : numel(program.slot(slot).type.shape) / share.length;
    for (size_t i = 0; i < sizes.size(); ++i)
      sizes[i] += row * share.part(static_cast<int>(i)).length();
  }
  return *std::max_element(sizes.begin(), sizes.end());
}

std::vector<Traffic> traffic(const Program& program) {
  std::vector<Traffic> out;
  const auto add = [&](Traffic t) {
    for (Traffic& known : out)
      if (known.segment == t.segment && known.op == t.op && known.ranks == t.ranks &&
          known.weights == t.weights) {
        known.calls += t.calls;
        known.bytes += t.bytes;
        return;
      }
    out.push_back(std::move(t));
  };
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      const Communication kind = communication_of(instr);
      if (kind == Communication::none || kind == Communication::receive ||
          kind == Communication::value_chunk)
        continue;
      std::string op = instr.op.substr(instr.op.find("::") + 2);
      const Slot& self = program.slot(reads(instr).at(0));
      const int64_t width = size_of(self.type.dtype);
      if (kind == Communication::send || kind == Communication::move) {
        const auto& moves = argument<Shape>(instr, kind == Communication::send ? "moves" : "sends");
        add({segment.name, op, 0, 1,
             moved_elements(moves, self.type.shape.size(), program.rank) * width});
        continue;
      }
      const bool scatter = kind == Communication::scatter_gradient;
      if (scatter) op = "reduce_scatter";
      const Shape& ranks = ranks_of(instr);
      add({segment.name, op, static_cast<int>(ranks.size()), 1,
           elements(program, instr, kind, ranks) * width,
           scatter || weight_of(program, self.id) >= 0});
    }
  for (const GradientSet& set : program.sets) {
    if (set.parameters.empty()) continue;
    const int64_t width = size_of(program.slot(set.parameters.at(0)).type.dtype);
    const int64_t chunk = chunk_of(program, set);
    const auto n = static_cast<int>(set.over.size());
    const bool whole = n > 0 && set.zero < plan::Zero::weights;  // after the step
    if (set.scatter && !set.late)
      add({"step", "reduce_scatter", n, 1, (n - 1) * chunk * width, true});
    if (!set.ranks.empty() && !set.late) {
      int64_t sum = 0;
      for (int slot : set.parameters) sum += numel(gradient_type(program.slot(slot)).shape);
      if (set.scatter) sum = chunk;
      const std::vector<int64_t> ranks(set.ranks.begin(), set.ranks.end());
      add({"step", "all_reduce", static_cast<int>(ranks.size()), 1,
           reduced(sum, ranks, program.rank) * width});
    }
    if (whole) add({"step", "all_gather", n, 1, (n - 1) * chunk * width, true});
  }
  return out;
}

}  // namespace nns::lower
