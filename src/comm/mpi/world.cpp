#include "comm/mpi/world.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>

#include "base/error.h"

namespace nns::comm {
namespace {

constexpr int kSpins = 4000, kYields = 4000;

// Activations of a small micro-batch cross shared memory at once instead of after a handshake that
// a rank in the middle of its computation answers late. Open MPI's own limit is 4,096 bytes.
void send_small_messages_at_once() {
  setenv("OMPI_MCA_btl_vader_eager_limit", "32768", 0);  // what the user set stays
}

// Calls piece(start, length) for pieces of at most so many bytes.
template <class F>
void for_pieces(int64_t bytes, int64_t most, F piece) {
  for (int64_t start = 0; start < bytes; start += most)
    piece(start, static_cast<int>(std::min(most, bytes - start)));
}

}  // namespace

void check_mpi(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorKind::communication, "[comm.{}] {}", operation,
       std::string_view(text, static_cast<size_t>(length)));
}

MpiWorld::MpiWorld(const Launch& launch, const ConnectOptions& options)
    : message_bytes_(options.message_bytes),
      timeout_s_(options.timeout_s),
      crowded_(launch.local_size > static_cast<int>(std::thread::hardware_concurrency())),
      uncaught_(std::uncaught_exceptions()) {
  int known = 0;
  MPI_Initialized(&known);
  if (known) fail(ErrorKind::state, "[comm.mpi] MPI is in use already; a process joins it once");
  send_small_messages_at_once();
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "mpi");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "mpi");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "mpi");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "mpi");
  if (rank_ != launch.rank || size_ != launch.size)
    fail(ErrorKind::communication,
         "[comm.mpi] MPI says rank {} of {}, {} says rank {} of {}; expected the same", rank_,
         size_, launch.launcher, launch.rank, launch.size);
}

MpiWorld::~MpiWorld() {
  if (std::uncaught_exceptions() > uncaught_) return;
  try {
    while (!under_way_.empty()) {
      step();
      std::this_thread::yield();
    }
  } catch (const Error&) {
    return;
  }
  MPI_Finalize();
}

void MpiWorld::check_thread() const {
  NNS_CHECK(std::this_thread::get_id() == owner_, "MPI is called from two threads");
}

void MpiWorld::add(std::shared_ptr<Operation> operation) {
  if (!operation->step()) under_way_.push_back(std::move(operation));
}

void MpiWorld::step() {
  under_way_.erase(std::remove_if(under_way_.begin(), under_way_.end(),
                                  [](const auto& operation) { return operation->step(); }),
                   under_way_.end());
}

void MpiWorld::wait(Operation& operation, const char* name) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point start{};
  for (int64_t polls = 0;; ++polls) {
    const bool done = operation.step();
    // Also when nothing was waited for: what the peer has taken by now is released.
    if (!under_way_.empty()) step();
    if (done) return;
    if (polls < kSpins && !crowded_) continue;
    if (start == Clock::time_point{}) start = Clock::now();
    if (polls < kSpins + kYields) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (polls % 1024 == 0 &&
        std::chrono::duration<double>(Clock::now() - start).count() > timeout_s_)
      fail(ErrorKind::communication,
           "[comm.{}] rank {} has waited for longer than {} s (comm.timeout_s)", name, rank_,
           timeout_s_);
  }
}

MpiBatch::MpiBatch(const MpiWorld& world, MPI_Comm comm, const char* operation)
    : most_(world.message_bytes()), comm_(comm), operation_(operation) {
  world.check_thread();
}

void MpiBatch::send(const void* data, int64_t bytes, int peer, int tag) {
  for_pieces(bytes, most_, [&](int64_t start, int length) {
    check_mpi(MPI_Isend(static_cast<const char*>(data) + start, length, MPI_BYTE, peer, tag, comm_,
                        &requests_.emplace_back()),
              operation_);
  });
}

void MpiBatch::recv(void* data, int64_t bytes, int peer, int tag) {
  for_pieces(bytes, most_, [&](int64_t start, int length) {
    check_mpi(MPI_Irecv(static_cast<char*>(data) + start, length, MPI_BYTE, peer, tag, comm_,
                        &requests_.emplace_back()),
              operation_);
  });
}

void MpiBatch::broadcast(void* data, int64_t bytes, int root) {
  for_pieces(bytes, most_, [&](int64_t start, int length) {
    check_mpi(MPI_Ibcast(static_cast<char*>(data) + start, length, MPI_BYTE, root, comm_,
                         &requests_.emplace_back()),
              operation_);
  });
}

void MpiBatch::barrier() {
  check_mpi(MPI_Ibarrier(comm_, &requests_.emplace_back()), operation_);
}

bool MpiBatch::step() {
  int done = 0;
  check_mpi(
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
      operation_);
  if (done != 0) requests_.clear();
  return done != 0;
}

}  // namespace nns::comm
