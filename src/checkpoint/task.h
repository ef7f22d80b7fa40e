// Work beside the program, on a thread of its own that is asked for its result.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>

namespace nns::checkpoint {

class Task {
 public:
  // Begins. The work looks at `stop` now and then: nobody waits for it any more where it is set.
  using Work = std::function<std::string(const std::atomic<bool>& stop)>;
  explicit Task(Work work);
  // Stops the work, unless it was asked for its result.
  ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  bool done() const { return done_; }
  // Waits for the end. Returns what the work returned, or throws what it threw.
  std::string result();

  // From here on the calling thread takes only the processor time that nobody else wants.
  static void let_others_first();

 private:
  void run(const Work& work);

  std::atomic<bool> stop_{false}, done_{false};
  std::string result_;
  std::exception_ptr error_;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace nns::checkpoint
