// Sums beside normalisations: the norm of a sum becomes one call that gives both, and the sum of
// the gradient that a norm gives and another becomes part of the call that gives it.
#include <algorithm>

#include "lower/passes.h"
#include "lower/uses.h"
#include "operators/own.h"
#include "operators/record.h"

namespace nns::lower {
namespace {

class Fuser {
 public:
  Fuser(const Program& program, Segment& segment, const std::string& device)
      : program_(program), device_(device), instrs_(segment.instrs), outputs_(segment.outputs) {}

  void run() {
    index();
    std::vector<bool> gone(instrs_.size(), false);
    for (size_t i = 0; i < instrs_.size(); ++i) {
      const operators::Record* record = operators::find(instrs_[i].op);
      if (record == nullptr || instrs_[i].kind != InstrKind::call) continue;
      if (!record->of_sum.empty()) take_sum(i, record->of_sum, gone);
      if (!record->addend.empty()) take_addend(i, record->addend, gone);
    }
    size_t at = 0;
    std::erase_if(instrs_, [&](const Instr&) { return gone[at++]; });
  }

 private:
  static constexpr size_t kNobody = SIZE_MAX;

  void index() {
    maker_.assign(program_.slots.size(), kNobody);
    readers_.assign(program_.slots.size(), {});
    for (size_t i = 0; i < instrs_.size(); ++i) {
      for (int slot : reads(instrs_[i])) readers_[static_cast<size_t>(slot)].push_back(i);
      for (int out : instrs_[i].outs)
        if (out >= 0) maker_[static_cast<size_t>(out)] = i;
    }
  }
  const std::vector<size_t>& readers(int slot) const { return readers_[static_cast<size_t>(slot)]; }

  // Whether the instruction is the sum of two tensors of one type that kernels of ours take, in the
  // block of `other`.
  bool is_sum(const Instr& instr, const Instr& other) const {
    const std::vector<int> in = reads(instr);
    if (instr.kind != InstrKind::call || !is_plain_sum(instr.op, instr.args) || in.size() != 2 ||
        instr.outs[0] < 0)
      return false;
    const TensorType& type = program_.slot(instr.outs[0]).type;
    return operators::own_takes(device_, type.dtype) && program_.slot(in[0]).type == type &&
           program_.slot(in[1]).type == type && block_of(instr.module) == block_of(other.module);
  }

  // norm(a + b): the sum is made where the norm is, if nobody reads it before.
  void take_sum(size_t i, const std::string& op, std::vector<bool>& gone) {
    Instr& norm = instrs_[i];
    const int sum = reads(norm)[0];
    const size_t at = maker_[static_cast<size_t>(sum)];
    if (at == kNobody || gone[at] || !is_sum(instrs_[at], norm)) return;
    if (std::any_of(readers(sum).begin(), readers(sum).end(), [&](size_t r) { return r < i; }))
      return;
    const std::vector<int> in = reads(instrs_[at]);
    norm.op = op;
    norm.args[0].value = Ref{in[0]};
    norm.args.insert(norm.args.begin() + 1, {"addend", Ref{in[1]}});
    norm.outs.insert(norm.outs.begin(), sum);
    gone[at] = true;
    maker_[static_cast<size_t>(sum)] = i;
  }

  // gradient + other, where the norm's call gives the gradient and the other is there before it.
  void take_addend(size_t i, const std::string& name, std::vector<bool>& gone) {
    Instr& norm = instrs_[i];
    const int gradient = norm.outs[0];
    if (gradient < 0 || find_arg(norm, name) != nullptr || readers(gradient).size() != 1 ||
        std::count(outputs_.begin(), outputs_.end(), gradient) > 0)
      return;
    const size_t at = readers(gradient)[0];
    if (!is_sum(instrs_[at], norm)) return;
    const std::vector<int> in = reads(instrs_[at]);
    const int other = in[0] == gradient ? in[1] : in[0];
    const size_t made = maker_[static_cast<size_t>(other)];
    if (other == gradient || (made != kNobody && made > i)) return;
    norm.args.push_back({name, Ref{other}});
    norm.outs[0] = instrs_[at].outs[0];
    gone[at] = true;
    maker_[static_cast<size_t>(norm.outs[0])] = i;
  }

  const Program& program_;
  const std::string& device_;
  std::vector<Instr>& instrs_;
  const std::vector<int>& outputs_;
  std::vector<size_t> maker_;                 // by slot
  std::vector<std::vector<size_t>> readers_;  // by slot
};

}  // namespace

bool is_plain_sum(std::string_view op, const std::vector<NamedArg>& args) {
  const operators::Record* record = operators::find(op);
  return record != nullptr && record->kind == operators::Kind::sum &&
         std::none_of(args.begin(), args.end(), [](const NamedArg& a) {
           const auto* whole = std::get_if<int64_t>(&a.value);
           const auto* real = std::get_if<double>(&a.value);
           return (whole != nullptr && *whole != 1) || (real != nullptr && *real != 1);
         });
}

void fuse_sums(Program& program, const std::string& device) {
  for (Segment& segment : program.segments) Fuser(program, segment, device).run();
}

}  // namespace nns::lower
