#include "lower/traffic.h"

#include <algorithm>
#include <map>

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
  if (kind == Communication::all_gather) {
    size("dim") = part(argument<int64_t>(instr, "whole"), n);
  } else if (kind == Communication::all_to_all) {
    size("from") = part(argument<int64_t>(instr, "whole"), n);
    size("dim") = part(size("dim"), n);
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

std::vector<Traffic> traffic(const Program& program, const std::vector<Bucket>& buckets) {
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
      const auto& ranks = argument<Shape>(instr, "group");
      add({segment.name, op, static_cast<int>(ranks.size()), 1,
           elements(program, instr, kind, ranks) * width,
           scatter || self.role == SlotRole::parameter});
    }
  for (const Bucket& bucket : buckets) {
    int64_t sum = 0;
    for (int slot : bucket.parameters) sum += numel(program.slot(slot).type.shape);
    const std::vector<int64_t> ranks(bucket.ranks.begin(), bucket.ranks.end());
    const int64_t width = size_of(program.slot(bucket.parameters.at(0)).type.dtype);
    add({"step", "all_reduce", static_cast<int>(ranks.size()), 1,
         reduced(sum, ranks, program.rank) * width});
  }
  return out;
}

std::vector<Bucket> buckets(const Program& program, int64_t bytes,
                            const std::set<std::string>& others) {
  std::vector<Bucket> out;
  std::vector<int> order;  // parameters by their last accumulation
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      if (instr.kind != InstrKind::accumulate) continue;
      std::erase(order, instr.target);
      order.push_back(instr.target);
    }
  for (int slot : program.parameters)
    if (others.contains(program.slot(slot).name) &&
        std::find(order.begin(), order.end(), slot) == order.end())
      order.push_back(slot);
  if (program.tags > 0) {
    const std::set<int> present(order.begin(), order.end());
    order.clear();
    for (int slot : program.parameters)
      if (present.contains(slot)) order.push_back(slot);
  }
  std::map<int, const Share*> shares;
  for (size_t i = 0; i < program.shares.size(); ++i)
    shares[program.parameters[i]] = &program.shares[i];
  struct Open {
    Bucket bucket;
    int64_t bytes = 0;
  };
  std::map<std::pair<std::vector<int>, DType>, Open> open;
  for (int slot : order) {
    const auto share = shares.find(slot);
    if (share == shares.end() || share->second->reduce.empty()) continue;
    const TensorType& type = program.slot(slot).type;
    Open& o = open[{share->second->reduce, type.dtype}];
    if (o.bytes > 0 && o.bytes + bytes_of(type) > bytes) {
      out.push_back(std::move(o.bucket));
      o = {};
    }
    o.bucket.ranks = share->second->reduce;
    o.bucket.parameters.push_back(slot);
    o.bytes += bytes_of(type);
  }
  // The rest in the order in which their last gradients come.
  std::vector<Bucket> rest;
  for (auto& [key, o] : open)
    if (!o.bucket.parameters.empty()) rest.push_back(std::move(o.bucket));
  const auto last = [&](const Bucket& b) {
    return std::find(order.begin(), order.end(), b.parameters.back());
  };
  std::stable_sort(rest.begin(), rest.end(),
                   [&](const Bucket& a, const Bucket& b) { return last(a) < last(b); });
  for (Bucket& b : rest) out.push_back(std::move(b));
  return out;
}

}  // namespace nns::lower
