// One rank of the interpreter: its tensors, and the instructions that it carries out by itself.
#pragma once

#include <fmt/ranges.h>

#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "lower/uses.h"
#include "support/interpreter.h"

namespace nns::test {

template <class... A>
[[noreturn]] void broken(fmt::format_string<A...> f, A&&... args) {
  throw std::runtime_error("interpreter: " + fmt::format(f, std::forward<A>(args)...));
}

// The box of an array, in its memory.
Array view_of(const Array& x, const std::vector<lower::Range>& box);

// Messages under way: sender, receiver, tag, micro-batch.
using Mail = std::map<std::tuple<int, int, int64_t, int>, std::deque<Array>>;

class Rank {
 public:
  Rank(const Programs& all, size_t number, const Inputs& inputs);

  bool done() const { return task_ == tasks_.size(); }
  const lower::Program& program() const { return program_; }
  int number() const { return number_; }

  // The instruction it stands at; nullptr at the end of a segment.
  const lower::Instr* current() const;
  const lower::Segment& segment() const { return *tasks_[task_].segment; }

  // Goes on until it waits for others; whether it did anything.
  bool run(Mail& mail);

  Array operand(const lower::Instr& instr, size_t k = 0) const {
    return read(lower::reads(instr).at(k));
  }
  // The results of a collective that all members made together.
  void complete(std::vector<Array> results);
  void complete(Array result) { complete(std::vector<Array>{std::move(result)}); }
  void count(const std::string& op, size_t ranks, int64_t elements, DType dtype);
  void count_step(const std::string& op, size_t ranks, int64_t bytes);

  std::map<int, Array> gradients;                    // by parameter slot
  std::map<int, std::map<int, Array>> new_contents;  // of buffers: slot, micro-batch
  std::map<int, double> decays;                      // of buffers
  std::map<int, double> losses;                      // by micro-batch of the unit
  std::map<int, Tensors> results;
  Measured measured;
  const std::map<int, Array>& lasting() const { return lasting_; }

 private:
  // A segment to run on a micro-batch.
  struct Task {
    const lower::Segment* segment;
    int micro;  // of the unit
  };
  // One micro-batch's tensors in one stage.
  struct Pass {
    std::map<int, Array> slots;
    std::map<int, Array> buffers;  // as its forward found them
  };

  int units() const { return all_.plan ? all_.plan->units() : 1; }
  int unit() const { return all_.plan ? number_ / all_.plan->plan_ngpus : 0; }
  int global(int micro) const { return micro * units() + unit(); }

  Array constant(size_t i) const;
  void plan_tasks();
  Pass& pass() { return passes_[{tasks_[task_].segment->stage, tasks_[task_].micro}]; }
  const Pass& pass() const {
    return passes_.at({tasks_[task_].segment->stage, tasks_[task_].micro});
  }
  void enter();
  void leave();
  void take_results(int micro);
  void take(const graph::Nest& nest, const std::string& name, Tensors& out);
  Array read(int id) const;
  void store(int id, Array value);
  // Bytes of what this pass made: memory of weights, samples and gradients is not its own.
  int64_t held(const Pass& pass) const;
  // Bytes of what gathers that began ahead will give.
  int64_t begun() const;

  // rank_instructions.cpp
  // Returns false when it has to wait.
  bool execute(const lower::Instr& instr, Mail& mail);
  // After an instruction: what it wrote in place has another name.
  void finish(const lower::Instr& instr);
  void show(const lower::Instr& instr);  // its results, to who watches
  void accumulate(const lower::Instr& instr);
  void post(const Array& x, const Shape& moves, int64_t tag, int micro, Mail& mail,
            const std::string& op, size_t ranks = 0);
  // All regions, or nothing where one has not come.
  bool collect(int out, const Shape& moves, int64_t tag, int micro, Mail& mail);
  bool send(const lower::Instr& instr, Mail& mail);
  bool receive(const lower::Instr& instr, Mail& mail);
  bool move(const lower::Instr& instr, Mail& mail);
  bool turn(const lower::Instr& instr, Mail& mail);

  const Programs& all_;
  const lower::Program& program_;
  int number_;
  const Inputs& inputs_;
  std::set<int> on_host_;
  std::map<int, Array> lasting_;
  std::vector<Task> tasks_;
  size_t task_ = 0, next_ = 0;
  bool entered_ = false, posted_ = false;
  std::set<int> visible_;
  std::map<std::pair<int, int>, Pass> passes_;  // by stage, micro-batch
};

}  // namespace nns::test
