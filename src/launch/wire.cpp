#include "launch/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "launch/launch.h"

namespace nns::launch {
namespace {

constexpr uint32_t kLongest = 1 << 20;

void make_ready(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int try_connect(const std::string& address, int port, int limit_ms) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
  const int fd = socket(found->ai_family, SOCK_STREAM, 0);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0) {
    make_ready(fd);
    if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      pollfd p{fd, POLLOUT, 0};
      socklen_t size = sizeof error;
      error = ETIMEDOUT;
      if (poll(&p, 1, limit_ms) == 1) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  freeaddrinfo(found);
  if (error == 0) return fd;
  if (fd >= 0) ::close(fd);
  return -1;
}

}  // namespace

std::string Endpoint::text() const {
  return nlohmann::json{{"host", host},
                        {"addresses", addresses},
                        {"port", port},
                        {"token", token},
                        {"beat_s", beat_s}}
      .dump();
}

Endpoint Endpoint::parse(const std::string& text) {
  try {
    const auto j = nlohmann::json::parse(text);
    return {j.at("host"), j.at("addresses"), j.at("port"), j.at("token"), j.at("beat_s")};
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::usage, "[launch.watch] '{}' is not an endpoint of a watch", text);
  }
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Connection::Connection(Connection&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  close();
  fd_ = std::exchange(other.fd_, -1);
  buffer_ = std::move(other.buffer_);
  return *this;
}

void Connection::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool Connection::send(const nlohmann::json& message) {
  const std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const uint32_t length = htonl(static_cast<uint32_t>(text.size()));
  std::string all(reinterpret_cast<const char*>(&length), sizeof length);
  all += text;
  size_t done = 0;
  while (open() && done < all.size()) {
    const ssize_t n = ::send(fd_, all.data() + done, all.size() - done, MSG_NOSIGNAL);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd p{fd_, POLLOUT, 0};
      if (poll(&p, 1, 200) != 1) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return done == all.size();
}

bool Connection::read() {
  char piece[4096];
  while (open()) {
    const ssize_t n = recv(fd_, piece, sizeof piece, 0);
    if (n > 0)
      buffer_.append(piece, static_cast<size_t>(n));
    else if (n < 0 && errno == EINTR)
      continue;
    else
      return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  return false;
}

std::optional<nlohmann::json> Connection::next() {
  uint32_t length = 0;
  if (buffer_.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, buffer_.data(), sizeof length);
  length = ntohl(length);
  if (length > kLongest) {  // nobody of ours
    close();
    return std::nullopt;
  }
  if (buffer_.size() < sizeof length + length) return std::nullopt;
  auto message = nlohmann::json::parse(buffer_.substr(sizeof length, length), nullptr, false);
  buffer_.erase(0, sizeof length + length);
  if (!message.is_object()) {
    close();
    return std::nullopt;
  }
  return message;
}

int listen_anywhere(int& port) {
  // One socket for both families, where the system has the newer one.
  int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  const int off = 0;
  bool bound = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
               bind(fd, reinterpret_cast<sockaddr*>(&six), sizeof six) == 0;
  if (!bound) {
    if (fd >= 0) ::close(fd);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&four), sizeof four) == 0;
  }
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (!bound || listen(fd, 1024) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0)
    fail(ErrorKind::communication, "[launch.watch] cannot listen on a port: {}",
         std::strerror(errno));
  port = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                         : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  make_ready(fd);
  return fd;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    if (getnameinfo(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6),
                    text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      found.emplace_back(text);
  }
  freeifaddrs(list);
  return found;
}

std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  // Sends nothing: the system only chooses the address.
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = "";
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  if (fd >= 0) ::close(fd);
  freeaddrinfo(found);
  return text;
}

Connection connect_to(const Endpoint& endpoint, double limit_s) {
  const double end = seconds() + limit_s;
  std::vector<std::string> addresses = endpoint.addresses;
  if (endpoint.host == host_id()) addresses = {"127.0.0.1"};
  do {
    for (const std::string& address : addresses)
      if (const int fd = try_connect(address, endpoint.port, 2000); fd >= 0) return Connection(fd);
    usleep(50000);
  } while (seconds() < end);
  std::string all;
  for (const std::string& address : addresses) all += (all.empty() ? "" : ", ") + address;
  throw Error(ErrorKind::communication,
              fmt::format("[launch.watch] cannot reach the watch of the ranks at {} port {} within "
                          "{} s",
                          all, endpoint.port, limit_s),
              "open the port between the hosts, or set comm.heartbeat_s=0 to run unwatched");
}

std::string process_space() {
  std::error_code unknown;  // leaves the path empty
  return host_id().substr(0, 36) + " " +
         std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string();
}

}  // namespace nns::launch
