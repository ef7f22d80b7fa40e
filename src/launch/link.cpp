#include "launch/link.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "launch/hub.h"
#include "launch/slot.h"

namespace nns::launch {
namespace {

using nlohmann::json;

constexpr double kSilentBeats = 10;
constexpr double kVerdict = 8;  // a failing rank waits so long for the hub's word

class Link {
 public:
  Link(const Endpoint& endpoint, int rank, int size);
  void fail(const std::string& text, bool consequence, int code, bool& first);
  void said();
  void end();
  bool ended() const { return ended_; }
  void limit_calls(double seconds) { call_limit_ = seconds; }

 private:
  void run();
  void beat(double now);
  void take(const json& message);
  void hub_lost(const std::string& why);
  void tell(const std::string& why);
  [[noreturn]] void leave(const std::string& why, int code);
  void check_call(double now);

  Connection connection_;
  const double beat_s_;
  const int rank_, size_;
  double heard_, sent_ = 0, call_since_ = 0;
  uint64_t calls_ = 0;
  std::atomic<double> call_limit_{0};
  int hub_process_ = 0, hub_rank_ = -1;
  const Slot* hub_slot_ = nullptr;
  std::string hub_at_;
  std::string overdue_;  // what this thread has told the hub of a call

  std::mutex mutex_;  // of what the main thread asks and is told
  std::condition_variable changed_;
  json to_send_ = json::array();
  bool speak_ = false, leave_ = false, closed_ = false, told_ = false;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Neither is ever destroyed: their threads end with the process.
Link* g_link = nullptr;
std::atomic<bool> g_over{false};
std::thread* g_hub_thread = nullptr;

Link::Link(const Endpoint& endpoint, int rank, int size)
    : connection_(connect_to(endpoint, 30)),
      beat_s_(endpoint.beat_s),
      rank_(rank),
      size_(size),
      heard_(seconds()) {
  connection_.send({{"type", "hello"},
                    {"token", endpoint.token},
                    {"rank", rank},
                    {"process", getpid()},
                    {"space", process_space()},
                    {"slot", (slot(), slot_descriptor())}});
  thread_ = std::thread([this] {
    sigset_t all;  // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    log::set_rank(rank_, size_);
    run();
  });
}

void Link::tell(const std::string& why) {
  if (!told_) log::error("nnscaler.launch", "leaves in {}: {}", describe(slot()), why);
  told_ = true;
}

void Link::leave(const std::string& why, int code) {
  tell(why);
  _exit(code);
}

void Link::hub_lost(const std::string& why) {
  closed_ = true;
  connection_.close();
  if (ended_) return;
  const std::string at = hub_slot_ != nullptr ? describe(*hub_slot_) : hub_at_;
  if (hub_slot_ != nullptr && hub_slot_->phase.load() == Phase::interrupted)
    leave(fmt::format("rank {} was interrupted", hub_rank_), 128 + SIGINT);
  if (hub_process_ != 0 && hub_rank_ >= 0) kill(hub_process_, SIGKILL);
  leave(hub_rank_ < 0
            ? fmt::format("the supervisor was lost: {}", why)
            : fmt::format("rank {} was lost{}: {}", hub_rank_, at.empty() ? "" : " in " + at, why),
        1);
}

void Link::take(const json& message) {
  const std::string type = message.value("type", "");
  if (type == "welcome") {
    hub_rank_ = message.value("rank", -1);
    if (message.value("space", "") == process_space()) {
      hub_process_ = message.value("process", 0);
      hub_slot_ = slot_of(hub_process_, message.value("slot", -1));
    }
  } else if (type == "beat") {
    hub_at_ = message.value("at", "");
  } else if (type == "signal") {
    kill(getpid(), message.value("number", SIGTERM));
  } else if (type == "speak") {
    // The main thread is in the call that takes too long.
    if (!overdue_.empty()) {
      log::error("nnscaler.launch", "{}: {}", describe(slot()), overdue_);
      connection_.send({{"type", "said"}});
      return;
    }
    const std::lock_guard lock(mutex_);
    speak_ = true;
    changed_.notify_all();
  } else if (type == "tell") {
    const std::lock_guard lock(mutex_);
    if (!ended_ && !speak_ && overdue_.empty()) tell(message.value("why", ""));
  } else if (type == "leave") {
    if (message.value("space", "") == process_space()) kill(message.value("lost", 0), SIGKILL);
    const std::unique_lock lock(mutex_);
    if (ended_) return;
    leave_ = true;
    changed_.notify_all();
    if (speak_) return;  // the main thread prints, and leaves by itself
    if (!overdue_.empty()) _exit(1);
    leave(message.value("why", ""), message.value("code", 1));
  }
}

void Link::beat(double now) {
  if (beat_s_ <= 0 || now - sent_ < beat_s_) return;
  sent_ = now;
  const Slot& s = slot();
  connection_.send({{"type", "beat"},
                    {"at", describe(s)},
                    {"calls", s.calls.load()},
                    {"waiting", s.operation.load() != Operation::none}});
}

void Link::check_call(double now) {
  const Slot& s = slot();
  const uint64_t calls = s.calls.load();
  if (calls != calls_ || s.operation.load() == Operation::none || call_since_ == 0) {
    calls_ = calls;
    call_since_ = now;
    return;
  }
  const double limit = call_limit_;
  if (limit <= 0 || now - call_since_ < limit || !overdue_.empty()) return;
  overdue_ = fmt::format("a call took longer than {} s (comm.timeout_s)", limit);
  connection_.send({{"type", "fail"}, {"text", overdue_}, {"code", 1}});
}

void Link::run() {
  bool late = false;
  while (!closed_) {
    const double before = seconds();
    pollfd p{connection_.fd(), POLLIN, 0};
    poll(&p, 1, 50);
    const double now = seconds();
    // After a stop of this process itself the hub has not been heard either.
    late = now - before > 2;
    if (p.revents != 0) {
      const bool more = connection_.read();
      heard_ = now;
      while (auto message = connection_.next()) take(*message);
      if (!more) return hub_lost("its process ended without a word (killed, or crashed)");
    } else if (late) {
      heard_ = now;
    }
    if (beat_s_ > 0 && now - heard_ > kSilentBeats * beat_s_)
      return hub_lost(fmt::format("it is silent for {:.0f} s (stopped, or its host is cut off)",
                                  kSilentBeats * beat_s_));
    {
      const std::lock_guard lock(mutex_);
      for (const json& message : to_send_) connection_.send(message);
      to_send_ = json::array();
      changed_.notify_all();
    }
    beat(now);
    check_call(now);
  }
}

// Asks the hub; returns when it has spoken (first: this rank is the first that failed).
void Link::fail(const std::string& text, bool consequence, int code, bool& first) {
  std::unique_lock lock(mutex_);
  to_send_.push_back(
      {{"type", "fail"}, {"text", text}, {"consequence", consequence}, {"code", code}});
  changed_.wait_for(lock, std::chrono::duration<double>(kVerdict), [&] { return speak_; });
  first = true;  // also when the hub is silent: better twice than not at all
}

void Link::said() {
  std::unique_lock lock(mutex_);
  to_send_.push_back({{"type", "said"}});
  changed_.wait_for(lock, std::chrono::duration<double>(kVerdict), [&] { return leave_; });
}

void Link::end() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  to_send_.push_back({{"type", "bye"}});
  changed_.wait_for(lock, std::chrono::seconds(2), [&] { return to_send_.empty(); });
}

void at_exit() {
  if (g_link == nullptr || g_link->ended()) return;
  leave_failed(Error(ErrorKind::state, "[launch.exit] the process ends before the common end",
                     "let every rank return from the run"),
               nullptr);
}

}  // namespace

void watch(const Endpoint& endpoint, int rank, int size) {
  if (g_link != nullptr) return;
  g_link = new Link(endpoint, rank, size);
  std::atexit(at_exit);
}

Endpoint host_watch(int rank, int size, double beat_s) {
  auto* hub = new Hub(size, beat_s, rank);
  g_hub_thread = new std::thread([hub, rank, size] {
    log::set_rank(rank, size);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    while (!hub->finished()) hub->step(0.1);
    g_over = true;
  });
  return hub->endpoint();
}

bool is_watched() {
  return g_link != nullptr && !g_link->ended();
}

void limit_calls(double seconds) {
  if (g_link != nullptr) g_link->limit_calls(seconds);
}

void leave_failed(const Error& error, void (*report)(const Error&)) {
  if (!is_watched()) return;
  bool first = false;
  g_link->fail(error.message(), error.kind() == ErrorKind::communication, error.exit_code(), first);
  if (report != nullptr)
    report(error);
  else
    log::error("nnscaler.launch", "{}", error.message());
  g_link->said();
  _exit(error.exit_code());
}

void finish() {
  if (!is_watched()) return;
  g_link->end();
  // The others say goodbye to the hub in this process.
  for (int i = 0; g_hub_thread != nullptr && !g_over && i < 1000; ++i) usleep(10000);
}

}  // namespace nns::launch
