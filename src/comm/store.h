// Where processes meet by TCP: the key-value store at MASTER_ADDR:MASTER_PORT.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "base/error.h"
#include "launch/launch.h"

namespace nns::comm {

std::chrono::milliseconds milliseconds(double seconds);

// What LibTorch throws, as an error of ours.
template <class F>
auto guarded_call(const char* operation, F call) {
  try {
    return call();
  } catch (const c10::Error& e) {
    fail(ErrorKind::communication, "[comm.{}] {}", operation, e.what_without_backtrace());
  } catch (const std::runtime_error& e) {
    fail(ErrorKind::communication, "[comm.{}] {}", operation, e.what());
  }
}

// `backend` is for messages.
c10::intrusive_ptr<c10d::Store> join_store(const char* backend, const launch::Launch& me,
                                           std::chrono::milliseconds limit);

}  // namespace nns::comm
