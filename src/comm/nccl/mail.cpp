#include "comm/nccl/mail.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <thread>

#include "base/log.h"
#include "comm/store.h"

namespace nns::comm {
namespace {

void send(const NcclPtr& connection, const at::Tensor& what) {
  std::vector<at::Tensor> one{what};
  connection->send(one, 1, 0)->wait();
}

at::Tensor receive(const NcclPtr& connection, int64_t count, at::TensorOptions options) {
  std::vector<at::Tensor> one{at::empty({count}, options)};
  connection->recv(one, 0, 0)->wait();
  return one[0];
}

}  // namespace

Outbox::Outbox(at::Device device, Meet meet)
    : state_(std::make_shared<State>(device, std::move(meet))) {
  std::thread(deliver, state_).detach();
}

Outbox::~Outbox() {
  try {
    if (std::uncaught_exceptions() == 0) flush();
  } catch (const std::exception& e) {
    log::warning("nnscaler.comm", "a message was never received: {}", e.what());
  }
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}

void Outbox::put(at::Tensor message, int tag) {
  auto ready = std::make_shared<at::cuda::CUDAEvent>();
  ready->record(c10::cuda::getCurrentCUDAStream(state_->device.index()));
  const std::lock_guard lock(state_->mutex);
  if (state_->error) std::rethrow_exception(state_->error);
  state_->letters.push_back({std::move(message), tag, std::move(ready)});
  state_->changed.notify_all();
}

void Outbox::flush() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->letters.empty() || state_->error; });
  if (state_->error) std::rethrow_exception(state_->error);
}

void Outbox::deliver(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  try {
    const c10::cuda::CUDAGuard device(state->device);
    // Not the stream that computes: it would wait for the receiver.
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, state->device.index());
    const c10::cuda::CUDAStreamGuard guard(stream);
    NcclPtr connection;
    for (;;) {
      state->changed.wait(lock, [&] { return state->closed || !state->letters.empty(); });
      if (state->letters.empty()) return;
      const Letter& letter = state->letters.front();  // others only add behind it
      lock.unlock();
      guarded_call("send", [&] {
        if (!connection) connection = state->meet();
        letter.ready->block(stream);
        const at::Tensor envelope =
            at::tensor({static_cast<int64_t>(letter.tag), letter.message.numel()}, at::kLong);
        send(connection, envelope.to(state->device));
        send(connection, letter.message);
        stream.synchronize();
      });
      lock.lock();
      state->letters.pop_front();
      state->changed.notify_all();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    state->error = std::current_exception();
    state->changed.notify_all();
  }
}

at::Tensor Inbox::take(int tag) {
  return guarded_call("recv", [&] {
    auto& waiting = early_[tag];
    while (waiting.empty()) {
      if (!connection_) connection_ = meet_();
      const auto on_device = at::TensorOptions().device(device_);
      const at::Tensor envelope = receive(connection_, 2, on_device.dtype(at::kLong)).cpu();
      const int64_t* const told = envelope.const_data_ptr<int64_t>();
      early_[static_cast<int>(told[0])].push_back(
          receive(connection_, told[1], on_device.dtype(at::kByte)));
    }
    at::Tensor message = std::move(waiting.front());
    waiting.pop_front();
    return message;
  });
}

}  // namespace nns::comm
