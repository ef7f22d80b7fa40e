#include "launch/hub.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "launch/launch.h"

namespace nns::launch {
namespace {

using nlohmann::json;

constexpr double kSilentBeats = 10;  // a rank silent for so many beats is lost
constexpr double kHold = 0.7;        // a failure to communicate waits so long for its cause
constexpr double kSpeak = 2;         // for the failing rank to print
constexpr double kLeave = 3;         // for the others to leave
constexpr double kSlow = 30;         // beats that one rank lets others wait before it is named

std::string make_token() {
  std::random_device source;
  std::string text;
  for (int i = 0; i < 4; ++i) text += fmt::format("{:08x}", source());
  return text;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

Hub::Hub(int size, double beat_s, int own_rank)
    : size_(size), own_rank_(own_rank), beat_s_(beat_s), token_(make_token()) {
  listener_ = listen_anywhere(port_);
}

Hub::~Hub() {
  if (listener_ >= 0) ::close(listener_);
}

Endpoint Hub::endpoint() const {
  return {host_id(), own_addresses(), port_, token_, beat_s_};
}

void Hub::say(const std::string& text) const {
  log::error("nnscaler.launch", "{}", text);
}

std::string Hub::where(const Peer& peer) const {
  const std::string at = peer.slot != nullptr ? describe(*peer.slot) : peer.at;
  return at.empty() ? "" : " in " + at;
}

void Hub::accept_new() {
  while (true) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    auto& peer = *peers_.emplace_back(std::make_unique<Peer>());
    peer.connection = Connection(fd);
    peer.heard = seconds();
  }
}

void Hub::take(Peer& peer, const json& message) {
  peer.heard = seconds();
  const std::string type = message.value("type", "");
  if (peer.rank < 0) {
    if (type != "hello" || message.value("token", "") != token_) return peer.connection.close();
    peer.rank = message.value("rank", -1);
    peer.process = message.value("process", 0);
    peer.space = message.value("space", "");
    peer.near = peer.space == process_space();
    if (peer.near) peer.slot = slot_of(peer.process, message.value("slot", -1));
    peer.connection.send({{"type", "welcome"},
                          {"process", getpid()},
                          {"space", process_space()},
                          {"slot", slot_descriptor()},
                          {"rank", own_rank_}});
    for (int i = 0; i < signals_; ++i)
      peer.connection.send({{"type", "signal"}, {"number", signal_}});
  } else if (type == "beat") {
    peer.at = message.value("at", "");
    peer.waiting = message.value("waiting", false);
    const uint64_t calls = message.value("calls", uint64_t{0});
    if (calls != peer.calls || peer.calls_since == 0) peer.calls_since = peer.heard;
    peer.calls = calls;
  } else if (type == "fail") {
    peer.failing = true;
    Verdict said{peer.rank,
                 fmt::format("rank {} failed{}: {}", peer.rank, where(peer),
                             first_line(message.value("text", ""))),
                 message.value("code", 1)};
    const bool consequence = message.value("consequence", false);
    if (held_ && (consequence || held_until_ == 0)) return;
    held_ = std::move(said);
    held_until_ = consequence ? peer.heard + kHold : 0;
  } else if (type == "said") {
    if (state_ == State::speaking) state_until_ = 0;
  } else if (type == "bye") {
    peer.ended = true;
  }
}

void Hub::lose(Peer& peer, const std::string& why) {
  peer.connection.close();
  if (peer.rank < 0 || peer.ended) return;
  peer.ended = true;
  if (peer.failing && held_ && held_->rank == peer.rank) return;
  if (!verdict_) {
    if (peer.slot != nullptr && peer.slot->phase.load() == Phase::interrupted)
      declare(-1, fmt::format("rank {} was interrupted", peer.rank), 128 + SIGINT);
    else
      declare(peer.rank, fmt::format("rank {} was lost{}: {}", peer.rank, where(peer), why));
  }
}

void Hub::hear(Peer& peer) {
  const bool more = peer.connection.read();
  while (auto message = peer.connection.next()) take(peer, *message);
  if (!more) lose(peer, "its process ended without a word (killed, or crashed)");
}

void Hub::declare(int rank, const std::string& why, int code) {
  if (verdict_) return;
  verdict_ = Verdict{rank, why, signals_ > 0 ? 128 + signal_ : code};
  Peer* speaker = nullptr;
  for (auto& peer : peers_)
    if (peer->rank == rank && peer->failing && peer->connection.open()) speaker = peer.get();
  state_ = State::speaking;
  state_until_ = seconds() + kSpeak;
  if (speaker != nullptr && speaker->connection.send({{"type", "speak"}})) return;
  // Nobody else can say it.
  if (signals_ == 0) say(why);
  state_until_ = 0;
}

void Hub::send_away(bool own) {
  json message{{"type", "leave"}, {"why", verdict_->why}, {"code", verdict_->code}};
  // Its neighbours end what may only have been stopped.
  for (auto& peer : peers_)
    if (peer->rank >= 0 && peer->rank == verdict_->rank && peer->ended) {
      message["lost"] = peer->process;
      message["space"] = peer->space;
    }
  // The hub's own rank leaves last, but says so now: a launcher may end it once another has left.
  for (auto& peer : peers_)
    if (!own && peer->connection.open() && peer->rank >= 0 && peer->rank == own_rank_)
      peer->connection.send({{"type", "tell"}, {"why", verdict_->why}});
  for (auto& peer : peers_)
    if (peer->connection.open() && peer->rank >= 0 && (peer->rank == own_rank_) == own)
      peer->connection.send(message);
}

void Hub::advance(double now) {
  if (held_ && !verdict_ && now >= held_until_) declare(held_->rank, held_->why, held_->code);
  if (state_ == State::speaking && now >= state_until_) {
    send_away(false);
    state_ = State::leaving;
    state_until_ = now + kLeave;
  }
  if (state_ != State::leaving) return;
  bool all_out = true;
  for (auto& peer : peers_)
    if (peer->connection.open() && peer->rank >= 0 && peer->rank != own_rank_) all_out = false;
  if (!all_out && now < state_until_) return;
  for (auto& peer : peers_) {
    if (!peer->connection.open() || peer->rank < 0 || peer->rank == own_rank_) continue;
    if (peer->near) kill(peer->process, SIGKILL);
    peer->connection.close();
  }
  state_ = State::over;
  send_away(true);
}

void Hub::beat(double now) {
  if (beat_s_ <= 0 || now - sent_ < beat_s_) return;
  sent_ = now;
  const json message{{"type", "beat"}, {"at", describe(slot())}};
  for (auto& peer : peers_)
    if (peer->connection.open() && peer->rank >= 0) peer->connection.send(message);
}

void Hub::check_silence(double now) {
  if (beat_s_ <= 0) return;
  const double limit = kSilentBeats * beat_s_;
  for (auto& peer : peers_) {
    if (!peer->connection.open() || peer->ended || now - peer->heard <= limit) continue;
    if (peer->rank < 0) {  // who connects without a word
      peer->connection.close();
      continue;
    }
    // A stopped process keeps its port and its memory until somebody ends it.
    const std::string why =
        fmt::format("it is silent for {:.0f} s (stopped, or its host is cut off)", limit);
    if (peer->near) kill(peer->process, SIGKILL);
    lose(*peer, why);
  }
}

// Names a rank that computes while others wait for it. It lives: that is all there is to say.
void Hub::check_slow(double now) {
  if (beat_s_ <= 0 || verdict_ || now - warned_ < 2 * kSlow * beat_s_) return;
  const Peer *waits = nullptr, *slow = nullptr;
  for (auto& peer : peers_) {
    if (peer->rank < 0 || peer->ended || peer->calls_since == 0) continue;
    if (now - peer->calls_since < kSlow * beat_s_) continue;
    (peer->waiting ? waits : slow) = peer.get();
  }
  if (waits == nullptr || slow == nullptr) return;
  warned_ = now;
  log::warning("nnscaler.launch",
               "rank {} is slow: it has been{} for {:.0f} s, and rank {} waits{}", slow->rank,
               where(*slow), now - slow->calls_since, waits->rank, where(*waits));
}

void Hub::signal(int number) {
  signal_ = number;
  ++signals_;
  for (auto& peer : peers_)
    if (peer->rank >= 0) peer->connection.send({{"type", "signal"}, {"number", number}});
}

bool Hub::finished() const {
  if (state_ == State::over) return true;
  int ended = 0;
  for (const auto& peer : peers_) ended += peer->rank >= 0 && peer->ended ? 1 : 0;
  return ended == size_;
}

void Hub::step(double wait_s) {
  std::vector<pollfd> files{{listener_, POLLIN, 0}};
  std::vector<Peer*> order;
  for (auto& peer : peers_)
    if (peer->connection.open()) {
      files.push_back({peer->connection.fd(), POLLIN, 0});
      order.push_back(peer.get());
    }
  const double before = seconds();
  poll(files.data(), files.size(), static_cast<int>(wait_s * 1000));
  const double now = seconds();
  // Who was stopped itself, with all that wait in its sockets, must not judge by the clock.
  if (now - before > wait_s + 2)
    for (auto& peer : peers_) peer->heard = now;
  for (size_t i = 0; i < order.size(); ++i)
    if (files[i + 1].revents != 0) hear(*order[i]);
  if (files[0].revents != 0) accept_new();
  beat(now);
  if (state_ == State::watching) {
    check_silence(now);
    check_slow(now);
  }
  advance(now);
}

}  // namespace nns::launch
