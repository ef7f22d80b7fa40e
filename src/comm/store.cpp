#include "comm/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <c10/util/Logging.h>

#include <cstdlib>

namespace nns::comm {
namespace {

std::string variable(const launch::Environment& environment, const char* backend,
                     const char* name) {
  const auto value = environment(name);
  if (!value || value->empty())
    throw Error(ErrorKind::usage, fmt::format("[comm.{}] {} is not set", backend, name),
                "it meets at MASTER_ADDR:MASTER_PORT, which torchrun sets; give them to the "
                "ranks, or choose another comm.backend");
  return *value;
}

}  // namespace

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

c10::intrusive_ptr<c10d::Store> join_store(const char* backend, const launch::Launch& me,
                                           std::chrono::milliseconds limit) {
  const launch::Environment environment = launch::process_environment();
  const std::string host = variable(environment, backend, "MASTER_ADDR");
  const std::string port = variable(environment, backend, "MASTER_PORT");
  const int number = std::atoi(port.c_str());
  if (number < 1 || number > 65535 || std::to_string(number) != port)
    fail(ErrorKind::usage, "[comm.{}] MASTER_PORT is '{}'; expected a port, 1 to 65535", backend,
         port);
  // What it logs of each attempt is C++ stacks; the error says what matters.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  c10::initLogging();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(number);
  // Under torchrun its agent serves there.
  options.isServer = me.rank == 0 && environment("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.waitWorkers = false;
  options.timeout = limit;
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& e) {
    const std::string text = e.what();
    throw Error(ErrorKind::communication,
                fmt::format("[comm.{}] rank {} cannot {} at {}:{}: {}", backend, me.rank,
                            options.isServer ? "serve" : "meet the others", host, port,
                            text.substr(0, text.find('\n'))),
                options.isServer
                    ? "is the port in use? MASTER_PORT chooses another, on all ranks"
                    : "MASTER_ADDR has to be the host of rank 0, reachable from here, and rank 0 "
                      "has to start within comm.join_timeout_s");
  }
  // A restart by torchrun must not meet the keys of the ranks before.
  return c10::make_intrusive<c10d::PrefixStore>(
      environment("TORCHELASTIC_RESTART_COUNT").value_or("0"), store);
}

}  // namespace nns::comm
