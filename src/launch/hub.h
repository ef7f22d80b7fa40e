// The hub of a watch: hears the beats of all ranks, decides which rank failed first, and sends the
// others away. It lives in the supervisor of `-n`, else in a thread of rank 0; it has neither Lua
// nor MPI.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/slot.h"
#include "launch/wire.h"

namespace nns::launch {

struct Verdict {
  int rank = -1;  // that failed first; -1: none of them
  std::string why;
  int code = 1;  // with which the run ends
};

class Hub {
 public:
  // `own_rank` lives in the process of the hub (-1: none does); it is told last, since the hub ends
  // with it.
  Hub(int size, double beat_s, int own_rank);
  ~Hub();

  Endpoint endpoint() const;
  // Waits up to so long for something to happen, and deals with it.
  void step(double wait_s);
  // All ranks have left, each in its way.
  bool finished() const;
  const std::optional<Verdict>& verdict() const { return verdict_; }
  // Sends the ranks away for a reason of the hub's owner.
  void declare(int rank, const std::string& why, int code = 1);
  // Gives a signal to every rank.
  void signal(int number);

 private:
  struct Peer {
    Connection connection;
    int rank = -1;
    int process = 0;
    std::string space;  // in which its process number means something
    bool near = false;  // its process numbers mean something here
    double heard = 0;
    const Slot* slot = nullptr;
    std::string at;      // where it was at its last beat
    uint64_t calls = 0;  // at that beat
    double calls_since = 0;
    bool waiting = false;  // in an operation
    bool ended = false;    // said goodbye, or left after the verdict
    bool failing = false;  // wants to be heard
  };
  enum class State { watching, speaking, leaving, over };

  void accept_new();
  void hear(Peer& peer);
  void take(Peer& peer, const nlohmann::json& message);
  void lose(Peer& peer, const std::string& why);
  void beat(double now);
  void check_silence(double now);
  void check_slow(double now);
  void advance(double now);
  void send_away(bool own);
  std::string where(const Peer& peer) const;
  void say(const std::string& text) const;

  int size_, own_rank_, listener_ = -1, port_ = 0;
  double beat_s_;
  std::string token_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::optional<Verdict> verdict_, held_;
  double held_until_ = 0, state_until_ = 0, warned_ = 0, sent_ = 0;
  State state_ = State::watching;
  int signal_ = 0, signals_ = 0;
};

}  // namespace nns::launch
