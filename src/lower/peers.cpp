#include "lower/peers.h"

namespace nns::lower {

std::vector<int> Peers::devices() const {
  std::vector<int> out;
  for (size_t i = 0; i < all_.size(); ++i)
    if (here_[i]) out.push_back(all_[i]);
  return out;
}

Holes Peers::holes() const {
  Holes out{devices(), std::vector<Hole>(known_.size())};
  for (const auto& [hole, index] : known_) {
    Hole& kept = out.list[index];
    kept = {hole.kind, hole.dims, {}};
    for (size_t i = 0; i < all_.size(); ++i)
      if (here_[i]) kept.values.push_back(hole.values[i]);
  }
  return out;
}

Shape Peers::open(Hole hole) {
  const bool shifts = hole.kind == Hole::Kind::ranks || hole.kind == Hole::Kind::moves;
  bool same = !(shifts && several_units_);
  for (size_t i = 1; i < all_.size(); ++i)
    same = same && (!here_[i] || hole.values[i] == hole.values[0]);
  if (same) {
    Shape out = std::move(hole.values[0]);
    const size_t step = hole.kind == Hole::Kind::moves ? 1 + 2 * hole.dims : 1;
    if (shifts)
      for (size_t i = 0; i < out.size(); i += step) out[i] += first_rank_;
    return out;
  }
  return {mark_of(known_.emplace(std::move(hole), known_.size()).first->second)};
}

}  // namespace nns::lower
