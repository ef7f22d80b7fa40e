// Peers: the devices that share one lowering. It goes through with the first of them; what its path
// depends on is the same on all (a device for which it is not leaves), and numbers that may differ
// become holes.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "lower/holes.h"
#include "lower/layout.h"

namespace nns::lower {

class Peers {
 public:
  // Devices of one scale unit; with `several_units` the same holds for all of them. Otherwise ranks
  // count from `first_rank`.
  Peers(std::vector<int> devices, bool several_units, int first_rank = 0)
      : all_(std::move(devices)),
        here_(all_.size(), true),
        several_units_(several_units),
        first_rank_(first_rank) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int device() const { return all_[0]; }  // the one that is lowered
  std::vector<int> devices() const;       // those that did not leave
  // The holes so far, with a value for each of the devices that did not leave.
  Holes holes() const;

  // What the lowering goes by: of(device).
  template <class F>
  auto alike(F of) {
    const auto mine = of(all_[0]);
    for (size_t i = 1; i < all_.size(); ++i)
      if (here_[i] && !(of(all_[i]) == mine)) here_[i] = false;
    return mine;
  }
  Shape local_shape(const Layout& layout, const Shape& shape) {
    return alike([&](int device) { return layout.local_shape(shape, device); });
  }

  // Numbers that may differ. An int64_t of(device):
  template <class F>
  int64_t number(F of) {
    return open({Hole::Kind::number, 0, rows([&](int device) { return Shape{of(device)}; })})[0];
  }
  // Equally many of them, a Shape of(device), that do not belong together:
  template <class F>
  Shape numbers(F of) {
    const std::vector<Shape> all = rows(of);
    Shape out;
    for (size_t k = 0; k < all[0].size(); ++k) {
      Hole hole{Hole::Kind::number, 0, all};
      for (Shape& row : hole.values)
        if (!row.empty()) row = {row.at(k)};
      out.push_back(open(std::move(hole))[0]);
    }
    return out;
  }
  // A list of(device) as it is, of devices as their ranks, or of regions that begin with a device.
  template <class F>
  Shape list(F of) {
    return open({Hole::Kind::list, 0, rows(of)});
  }
  template <class F>
  Shape ranks(F of) {
    return open({Hole::Kind::ranks, 0, rows(of)});
  }
  template <class F>
  Shape moves(size_t dims, F of) {
    return open({Hole::Kind::moves, dims, rows(of)});
  }

 private:
  template <class F>
  std::vector<Shape> rows(F of) const {
    std::vector<Shape> out(all_.size());
    for (size_t i = 0; i < all_.size(); ++i)
      if (here_[i]) out[i] = of(all_[i]);
    return out;
  }
  // The value where there is one for all, else a mark.
  Shape open(Hole hole);

  std::vector<int> all_;
  std::vector<bool> here_;
  bool several_units_;
  int first_rank_;
  std::map<Hole, size_t> known_;
};

}  // namespace nns::lower
