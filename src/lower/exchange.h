// Exchange: writes adapters as communicating calls on the tape, so that their derivatives follow
// from the rules of communication like those of any other call.
#pragma once

#include <map>
#include <string>

#include "lower/adapter.h"
#include "lower/peers.h"
#include "lower/placement.h"
#include "lower/tape.h"

namespace nns::lower {

// Changes of layout in a program: how many, how many of them are one call whose derivative is one
// call too, and what calls and derivatives there are ("all_gather / reduce_scatter").
struct AdapterCount {
  int all = 0, paired = 0;
  std::map<std::string, int> pairs;

  void add(const AdapterCount& other);
};

// Devices that differ from `device` along the axes only, ascending.
Shape group_of(const Layout& layout, const std::vector<int>& axes, int device);

class Exchange {
 public:
  Exchange(Tape& tape, Emitter& emitter, Peers& peers) : tape_(tape), e_(emitter), peers_(peers) {}

  // Emits what turns the local piece `x` of a value laid out as `from` into the piece that `use`
  // wants, and returns it: by collectives, or point to point where no collective lines up.
  Ref convert(Ref x, const Layout& from, const OperandUse& use, const TensorType& whole);

  const AdapterCount& count() const { return count_; }
  // Counts a message between stages.
  void count_message() { ++count_.all; }

  // A weight whose gradients are addends where `home` is partial, for a use that gives whole ones:
  // of those the first rank's counts.
  Ref owned(Ref x, const OperandUse& home);

  // Ranks, ascending, of the devices that differ from this one along the axes only.
  Shape group(const Layout& layout, const std::vector<int>& axes) const;
  // Regions of a tensor that this device sends when it goes from one layout to another, or that it
  // receives.
  Shape sends(const Layout& from, const Layout& to, const Shape& shape) const;
  Shape receives(const Layout& from, const Layout& to, const Shape& shape) const;
  Peers& peers() const { return peers_; }

 private:
  // `x` itself, whose gradient is summed over the axes.
  Ref copied(Ref x, const Layout& layout, const std::vector<int>& axes);
  // Steps that this class can emit: collectives over ascending devices, or a move.
  std::vector<Step> steps(const Layout& from, const Layout& to, const TensorType& whole) const;
  Ref collective(Ref x, const Step& step, const std::vector<int>& summed, const TensorType& whole);
  Ref move(Ref x, const Step& step, const TensorType& whole);
  // Counts a call on `x` and the one that its gradient takes.
  void count_pair(Ref x, const char* forward, const char* backward);
  Ref apply(const char* op, Ref x, std::vector<NamedArg> args, const TensorType& type);

  Tape& tape_;
  Emitter& e_;
  Peers& peers_;
  AdapterCount count_;
};

}  // namespace nns::lower
