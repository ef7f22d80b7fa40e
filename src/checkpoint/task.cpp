#include "checkpoint/task.h"

#include <sys/resource.h>
#include <unistd.h>
#include <csignal>

namespace nns::checkpoint {

Task::Task(Work work) : thread_([this, work = std::move(work)] { run(work); }) {}

Task::~Task() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Task::run(const Work& work) {
  sigset_t all;  // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  try {
    result_ = work(stop_);
  } catch (...) {
    error_ = std::current_exception();
  }
  done_ = true;
}

void Task::let_others_first() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
}

std::string Task::result() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(error_);
  return result_;
}

}  // namespace nns::checkpoint
