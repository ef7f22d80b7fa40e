// Sockets of the watch: whole JSON messages with a length in front. Nothing here waits longer than
// its caller says.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace nns::launch {

// Where a hub listens, as the ranks are told.
struct Endpoint {
  std::string host;                    // host_id of the hub
  std::vector<std::string> addresses;  // numeric, of all its interfaces
  int port = 0;
  std::string token;  // who does not know it is not a rank
  double beat_s = 1;  // 0: silence means nothing

  std::string text() const;
  static Endpoint parse(const std::string& text);
};

double seconds();  // on the monotonic clock

class Connection {
 public:
  explicit Connection(int fd = -1) : fd_(fd) {}
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  ~Connection() { close(); }

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();
  // Returns false when the message cannot be handed over (the peer is gone or reads nothing).
  bool send(const nlohmann::json& message);
  // Takes what has arrived; false at the end of the connection.
  bool read();
  // The next whole message, if any.
  std::optional<nlohmann::json> next();

 private:
  int fd_;
  std::string buffer_;
};

// Listens on a port of the system's choice, on all addresses of this host.
int listen_anywhere(int& port);
// Numeric addresses of this host that others may reach.
std::vector<std::string> own_addresses();
// Numeric address from which this host reaches another, or "" when that is unknown.
std::string address_towards(const std::string& host);
// Tries the addresses in turn until the time is over; throws a communication error.
Connection connect_to(const Endpoint& endpoint, double limit_s);

// Where a process lives, for who may have to end it.
std::string process_space();  // the same text: process numbers mean the same

}  // namespace nns::launch
