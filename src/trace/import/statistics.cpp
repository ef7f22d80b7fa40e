// Batch norms of decomposed programs. `run_decompositions` leaves calls that return their new
// running statistics, which become the content of buffers at the end: the calls that write them are
// put back.
#include <algorithm>
#include <map>

#include "trace/import/parts.h"

namespace nns::trace::import {
namespace {

constexpr const char* kFunctional = "aten::_native_batch_norm_legit_functional";
constexpr const char* kFrozen = "aten::_native_batch_norm_legit_no_training";
constexpr int kNever = -1;

template <class Visit>
void for_each_slot(Term& term, const Visit& visit) {
  if (auto* slot = std::get_if<Slot>(&term.value)) visit(*slot);
  if (auto* list = std::get_if<std::vector<Term>>(&term.value))
    for (Term& item : *list) for_each_slot(item, visit);
}

template <class Visit>
void for_each_slot(Step& step, const Visit& visit) {
  for (auto& [name, term] : step.args) for_each_slot(term, visit);
}

Term* argument(Step& step, std::string_view name) {
  const auto it = std::find_if(step.args.begin(), step.args.end(),
                               [&](const auto& arg) { return arg.first == name; });
  return it == step.args.end() ? nullptr : &it->second;
}

int slot_of(const Term* term) {
  const Slot* slot = term == nullptr ? nullptr : std::get_if<Slot>(&term->value);
  return slot == nullptr ? kNever : slot->index;
}

int result_of(const Step& step, size_t i) {
  return i < step.results.size() && step.results[i].slots.size() == 1 && !step.results[i].list
             ? step.results[i].slots[0]
             : kNever;
}

class Speller {
 public:
  explicit Speller(Program& program) : program_(program), body_(program.body) {
    last_use_.assign(body_.slots.size(), kNever);
    const auto count = static_cast<int>(body_.steps.size());
    for (int i = 0; i < count; ++i)
      for_each_slot(body_.steps[static_cast<size_t>(i)],
                    [&](Slot slot) { last_use_[static_cast<size_t>(slot.index)] = i; });
    std::vector<bool> updates(body_.outputs.size(), false);
    for (const auto& [output, buffer] : program_.updates) updates[output] = true;
    for (size_t i = 0; i < updates.size(); ++i)
      if (!updates[i])
        for_each_slot(body_.outputs[i],
                      [&](Slot slot) { last_use_[static_cast<size_t>(slot.index)] = count; });
    std::map<std::string, int> buffers;
    for (size_t i = 0; i < program_.inputs.size(); ++i)
      if (program_.inputs[i].role == Role::buffer)
        buffers[program_.inputs[i].name] = body_.inputs[i];
    for (const auto& [output, buffer] : program_.updates) {
      const auto held = buffers.find(buffer);
      const int made = slot_of(&body_.outputs[output]);
      if (held != buffers.end() && made != kNever) content_of_[made] = held->second;
    }
  }

  void run() {
    for (size_t i = 0; i < body_.steps.size(); ++i) {
      Step& step = body_.steps[i];
      if (step.op == kFrozen)
        freeze(step);
      else if (step.op == kFunctional)
        write(step, static_cast<int>(i));
    }
    const auto rename = [&](Slot& slot) {
      if (const auto it = renamed_.find(slot.index); it != renamed_.end()) slot.index = it->second;
    };
    for (Step& step : body_.steps) for_each_slot(step, rename);
    for (Term& output : body_.outputs) for_each_slot(output, rename);
  }

 private:
  bool is_unused(const Step& step, size_t result) const {
    const int slot = result_of(step, result);
    return slot == kNever || last_use_[static_cast<size_t>(slot)] == kNever;
  }

  void become_batch_norm(Step& step) {
    step.op = "aten::batch_norm";
    step.args.emplace_back("cudnn_enabled", Term{false});
    step.results.resize(1);
  }

  void freeze(Step& step) {
    if (step.results.size() != 3 || !is_unused(step, 1) || !is_unused(step, 2)) return;
    step.args.emplace_back("training", Term{false});
    become_batch_norm(step);
  }

  void write(Step& step, int at) {
    const Term* training = argument(step, "training");
    const bool* on = training == nullptr ? nullptr : std::get_if<bool>(&training->value);
    if (on == nullptr || !*on || step.results.size() != 5 || !is_unused(step, 1) ||
        !is_unused(step, 2))
      return;
    for (const auto& [name, result] : kWritten) {
      const int held = slot_of(argument(step, name)), made = result_of(step, result);
      const auto buffer = content_of_.find(made);
      // Nobody may read what the buffer held before.
      if (held == kNever || made == kNever || buffer == content_of_.end() ||
          buffer->second != held || last_use_[static_cast<size_t>(held)] > at)
        return;
    }
    for (const auto& [name, result] : kWritten)
      renamed_[result_of(step, result)] = slot_of(argument(step, name));
    become_batch_norm(step);
  }

  static constexpr std::pair<const char*, size_t> kWritten[] = {{"running_mean", 3},
                                                                {"running_var", 4}};
  Program& program_;
  Body& body_;
  std::vector<int> last_use_;      // step by slot; the number of steps for what is returned
  std::map<int, int> content_of_;  // value → buffer whose content it is at the end
  std::map<int, int> renamed_;     // value → buffer that holds it
};

}  // namespace

void spell_statistics(Program& program) {
  Speller(program).run();
}

}  // namespace nns::trace::import
