// The back ends by which ranks are joined: the one list of them. What `comm.backend` may say is
// made from it; src/comm has a folder for each, and knows it by its enumerator.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace nns::job {

enum class Backend { local, gloo, mpi, nccl };

// In the order of the enumerators.
inline constexpr std::array<std::string_view, 4> kBackends{"local", "gloo", "mpi", "nccl"};

inline std::string name_of(Backend backend) {
  return std::string(kBackends.at(static_cast<size_t>(backend)));
}

// "auto local gloo mpi nccl": Key::choices of comm.backend.
inline constexpr auto kBackendChoices = [] {
  std::array<char, 64> text{};
  size_t at = 0;
  const auto add = [&](std::string_view word) {
    for (const char c : word) text.at(at++) = c;
  };
  add("auto");
  for (const std::string_view name : kBackends) {
    add(" ");
    add(name);
  }
  return text;
}();

}  // namespace nns::job
