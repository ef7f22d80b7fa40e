// Loops of a generated function: one turn is written for all. What a turn hands to the next is a
// variable, what others read of each turn an element of a table, and numbers that grow from turn to
// turn are formulas of the loop's variable.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "codegen/function.h"
#include "codegen/lists.h"
#include "lower/uses.h"

namespace nns::codegen {

using lower::Loop;
using lower::NamedArg;
using lower::Ref;
using lower::Segment;

class FunctionWriter::LoopWriter {
 public:
  LoopWriter(FunctionWriter& w, const Segment& segment, const Loop& loop,
             const std::vector<size_t>& last_use)
      : w_(w), segment_(segment), loop_(loop), last_use_(last_use) {}

  void write() {
    find_made();
    find_numbering();
    find_carried();
    for (size_t p = 0; p < loop_.size; ++p)
      for (size_t q = 0; q < at(1, p).outs.size(); ++q)
        if (at(1, p).outs[q] >= 0) place_result(p, q);
    for (Carried& c : carried_) begin(c);
    std::vector<Instr> turn;
    for (size_t p = 0; p < loop_.size; ++p) turn.push_back(one_for_all(p));
    const auto free = w_.free_;
    const size_t locals = w_.locals_;
    w_.free_.clear();
    const int64_t last = i_.at(loop_.count - 1);
    w_.raw(fmt::format("for i = {}, {}{} do", i_.from, last, i_.by < 0 ? ", -1" : ""));
    w_.indent(true);
    for (const Instr& instr : turn) w_.statement(instr);
    hand_on();
    w_.indent(false);
    w_.raw("end");
    w_.free_ = free;
    w_.locals_ = locals;
    name_results();
  }

 private:
  struct Result {  // kept of every turn: the element of each
    size_t place, out;
    std::vector<std::string> elements;
  };
  struct Carried {
    size_t place, out;
    int begin;  // slot that the first turn reads
    std::string variable;
  };

  const Instr& at(size_t turn, size_t place) const {
    return segment_.instrs[loop_.first + turn * loop_.size + place];
  }
  int made_at(size_t turn, size_t place, size_t out) const { return at(turn, place).outs[out]; }

  void find_made() {
    for (size_t i = loop_.first; i < loop_.last(); ++i)
      for (size_t q = 0; q < segment_.instrs[i].outs.size(); ++q)
        made_[segment_.instrs[i].outs[q]] = {i - loop_.first, q};
  }
  bool is_outside(int slot) const { return !made_.contains(slot); }

  // The variable follows the first number that grows by one, so that indices read plainly.
  void find_numbering() {
    for (size_t p = 0; p < loop_.size; ++p) {
      const auto a = lower::reads(at(0, p)), b = lower::reads(at(1, p));
      for (size_t q = 0; q < a.size(); ++q) {
        if (a[q] == b[q] || !is_outside(a[q]) || !is_outside(b[q])) continue;
        if (const auto grows = growth(w_.expression(a[q]), w_.expression(b[q]));
            grows && follow(grows->first, grows->second))
          return;
      }
      for (size_t k = 0; k < at(0, p).args.size(); ++k) {
        const auto* x = std::get_if<int64_t>(&at(0, p).args[k].value);
        const auto* y = std::get_if<int64_t>(&at(1, p).args[k].value);
        if (x != nullptr && y != nullptr && follow(*x, *y - *x)) return;
      }
    }
  }
  bool follow(int64_t first, int64_t growth) {
    const Numbering i{first, growth};
    if ((growth != 1 && growth != -1) || first < 0 || i.at(loop_.count - 1) < 0) return false;
    i_ = i;
    return true;
  }

  void find_carried() {
    for (size_t p = 0; p < loop_.size; ++p) {
      const auto first = lower::reads(at(0, p)), second = lower::reads(at(1, p));
      for (size_t q = 0; q < second.size(); ++q) {
        const auto made = made_.find(second[q]);
        if (made == made_.end() || made->second.first >= loop_.size) continue;
        const Carried c{made->second.first, made->second.second, first[q], ""};
        if (!is_carried(c.place, c.out)) carried_.push_back(c);
      }
    }
  }
  bool is_carried(size_t place, size_t out) const {
    return std::any_of(carried_.begin(), carried_.end(),
                       [&](const Carried& c) { return c.place == place && c.out == out; });
  }

  // Opens the table of a result that others read of every turn.
  void place_result(size_t place, size_t out) {
    bool stored = false, wanted = false;
    for (size_t turn = 0; turn < loop_.count; ++turn) {
      const int slot = made_at(turn, place, out);
      stored = stored || w_.field_.contains(slot);
      wanted = wanted || (last_use_[static_cast<size_t>(slot)] >= loop_.last() &&
                          !(turn + 1 == loop_.count && is_carried(place, out)));
    }
    if (!stored && !wanted) return;
    Result result{place, out, {}};
    std::string table;
    if (!stored) {
      const std::string& hint = w_.program_.slot(made_at(1, place, out)).name;
      table = w_.fresh_local(hint);
      w_.raw(w_.declaration(table) + " = {}");
    }
    for (size_t turn = 0; turn < loop_.count; ++turn) {
      const int slot = made_at(turn, place, out);
      result.elements.push_back(stored ? w_.field_.at(slot)
                                       : fmt::format("{}[{}]", table, i_.at(turn)));
    }
    if (stored) {
      const std::string& first = result.elements[0];
      w_.need("s");
      w_.raw(first.substr(0, first.rfind('[')) + " = {}");
    }
    const auto formula = growing(result.elements, i_);
    NNS_CHECK(formula.has_value(), "codegen: results of a loop are kept in different tables");
    w_.field_[made_at(1, place, out)] = *formula;
    results_.push_back(std::move(result));
  }

  void begin(Carried& c) {
    const std::string begin = w_.expression(c.begin);
    c.variable = w_.fresh_local(w_.program_.slot(made_at(1, c.place, c.out)).name);
    w_.raw(fmt::format("{} = {}", w_.declaration(c.variable), begin));
    w_.expression_[made_at(0, c.place, c.out)] = c.variable;
  }

  // The second turn's instruction with what differs between turns in terms of the variable.
  Instr one_for_all(size_t place) {
    Instr instr = at(1, place);
    size_t q = 0;
    lower::for_each_ref(instr.args, [&](Ref& ref) {
      if (is_outside(ref.id)) ref = outside(ref, place, q);
      ++q;
    });
    for (size_t k = 0; k < instr.args.size(); ++k) {
      NamedArg& arg = instr.args[k];
      const auto& first = at(0, place).args[k].value;
      if (arg.value == first) continue;
      if (const auto* x = std::get_if<int64_t>(&arg.value)) {
        const int64_t before = std::get<int64_t>(first);
        arg.value = graph::Symbol{"=" + growing(before, *x - before, i_)};
      } else if (const auto* list = std::get_if<std::vector<int64_t>>(&arg.value)) {
        const auto& before = std::get<std::vector<int64_t>>(first);
        std::string text;
        for (size_t n = 0; n < list->size(); ++n)
          text += (n == 0 ? "" : ", ") + growing(before[n], (*list)[n] - before[n], i_);
        arg.value = graph::Symbol{"={ " + text + " }"};
      } else if (std::holds_alternative<std::string>(arg.value)) {
        arg.value = graph::Symbol{"=" + text_for_all(place, k)};
      }
    }
    return instr;
  }

  // 'drop:dropout#' .. i
  std::string text_for_all(size_t place, size_t k) {
    const auto number = [](const std::string& text) {
      return text.find_last_not_of("0123456789") + 1;
    };
    NamedArg arg = at(0, place).args[k];
    const std::string first = std::get<std::string>(arg.value),
                      second = std::get<std::string>(at(1, place).args[k].value);
    const size_t cut = number(first);
    const int64_t begin = std::stoll(first.substr(cut));
    const std::string grows = growing(begin, std::stoll(second.substr(cut)) - begin, i_);
    const std::string end = grows == "i" ? grows : "(" + grows + ")";
    return w_.text_value(arg, at(0, place), first.substr(0, cut), " .. " + end);
  }

  // A tensor from outside of the loop: one for all turns, or an element of a table.
  Ref outside(Ref ref, size_t place, size_t operand) {
    std::vector<int> slots;
    std::vector<std::string> texts;
    bool same = true;
    for (size_t turn = 0; turn < loop_.count; ++turn) {
      slots.push_back(lower::reads(at(turn, place)).at(operand));
      same = same && slots.back() == slots[0];
    }
    if (same) return ref;
    const auto known = lists_.find(slots);
    if (known != lists_.end()) return known->second;
    for (int slot : slots) texts.push_back(w_.expression(slot));
    auto text = growing(texts, i_);
    if (!text) {
      const std::string table = w_.fresh_local(w_.program_.slot(ref.id).name);
      w_.put_line(fmt::format("{} = {}", w_.declaration(table), list_text(texts)));
      text = fmt::format("{}[{}]", table, growing(1, 1, i_));
    }
    const Ref stand_in{static_cast<int>(w_.program_.slots.size()) + w_.stand_ins_++};
    w_.expression_[stand_in.id] = *text;
    lists_.emplace(slots, stand_in);
    return stand_in;
  }

  void hand_on() {
    std::string left, right;
    for (const Carried& c : carried_) {
      const std::string made = w_.expression(made_at(1, c.place, c.out));
      if (made == c.variable) continue;
      left += (left.empty() ? "" : ", ") + c.variable;
      right += (right.empty() ? "" : ", ") + made;
    }
    if (!left.empty()) w_.put_line(left + " = " + right);
  }

  void name_results() {
    const size_t last = loop_.count - 1;
    for (const Carried& c : carried_) {
      const int slot = made_at(last, c.place, c.out);
      w_.expression_[slot] = c.variable;
      w_.hint_[slot] = w_.hint_of(slot);
    }
    for (const Result& r : results_)
      for (size_t turn = 0; turn < loop_.count; ++turn) {
        const int slot = made_at(turn, r.place, r.out);
        w_.expression_[slot] = r.elements[turn];
        w_.hint_.erase(slot);
      }
  }

  FunctionWriter& w_;
  const Segment& segment_;
  const Loop& loop_;
  const std::vector<size_t>& last_use_;
  Numbering i_;
  std::unordered_map<int, std::pair<size_t, size_t>> made_;  // slot → instruction, output
  std::vector<Carried> carried_;
  std::vector<Result> results_;
  std::map<std::vector<int>, Ref> lists_;
};

void FunctionWriter::loop(const Segment& segment, const Loop& loop,
                          const std::vector<size_t>& last_use) {
  LoopWriter(*this, segment, loop, last_use).write();
}

}  // namespace nns::codegen
