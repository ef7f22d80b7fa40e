// Last uses: every tensor that a segment owns is released after the instruction that reads it
// last. Instances of one repeated block release alike; what only some of them would release is
// released after the last of them.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "lower/passes.h"
#include "lower/storage.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

class Releases {
 public:
  Releases(const Program& program, Segment& segment, const Storage& storage)
      : program_(program), segment_(segment), storage_(storage) {}

  void run() {
    find_last_uses();
    while (!settle_blocks()) {
    }
    gather();
    write();
  }

 private:
  bool owned(int slot) const {
    const auto listed = [slot](const std::vector<int>& list) {
      return std::find(list.begin(), list.end(), slot) != list.end();
    };
    return slot >= 0 && is_local(program_, slot) && !kept_.contains(slot) &&
           !listed(segment_.inputs);
  }

  void find_last_uses() {
    kept_.insert(segment_.outputs.begin(), segment_.outputs.end());
    kept_.insert(segment_.saved_out.begin(), segment_.saved_out.end());
    bool later = false;
    for (const Segment& other : program_.segments) {
      if (later) kept_.insert(other.saved_in.begin(), other.saved_in.end());
      later = later || &other == &segment_;
      kept_.insert(other.outputs.begin(), other.outputs.end());
      for (const Instr& instr : other.instrs)  // a buffer's content outlives the micro-batch
        if (instr.kind == InstrKind::update) kept_.insert(reads(instr)[0]);
    }
    for (size_t i = 0; i < segment_.instrs.size(); ++i) {
      const Instr& instr = segment_.instrs[i];
      for (int slot : reads(instr)) last_[slot] = i;
      for (int out : instr.outs)
        if (out >= 0) last_[out] = i;
      // The tensor lives on under the result's name, or belongs to the gradient.
      if (instr.kind == InstrKind::accumulate && is_owned(instr)) taken_.insert(reads(instr)[0]);
      if (instr.kind == InstrKind::call && is_in_place(instr)) taken_.insert(reads(instr)[0]);
    }
    for (const auto& [slot, i] : last_)
      if (owned(slot) && !taken_.contains(slot)) after_[i].push_back(slot);
  }

  // Slots that instances use in corresponding places.
  std::vector<int> places(const BlockRun& run) const {
    std::vector<int> slots;
    for (size_t i = run.first; i < run.last; ++i) {
      for (int slot : reads(segment_.instrs[i])) slots.push_back(slot);
      for (int out : segment_.instrs[i].outs)
        if (out >= 0) slots.push_back(out);
    }
    return slots;
  }

  // Makes the releases of each run of one body alike. Returns false when a run had to give up an
  // instance, after which everything is looked at again.
  bool settle_blocks() {
    auto& blocks = segment_.blocks;
    for (size_t a = 0; a < blocks.size();) {
      size_t b = a + 1;
      while (b < blocks.size() && blocks[b].body == blocks[a].body &&
             blocks[b].first == blocks[b - 1].last)
        ++b;
      if (!settle_run(a, b)) return false;
      a = b;
    }
    return true;
  }

  bool releases_inside(int slot, const BlockRun& run) const {
    const auto it = last_.find(slot);
    if (it == last_.end() || it->second < run.first || it->second >= run.last) return false;
    const auto& list = after_.find(it->second);
    return list != after_.end() &&
           std::find(list->second.begin(), list->second.end(), slot) != list->second.end();
  }

  bool settle_run(size_t a, size_t b) {
    auto& blocks = segment_.blocks;
    std::vector<std::vector<int>> slots;
    for (size_t k = a; k < b; ++k) slots.push_back(places(blocks[k]));
    const size_t end = blocks[b - 1].last - 1;
    for (size_t p = 0; p < slots[0].size(); ++p) {
      std::vector<bool> inside;
      bool invariant = true;
      for (size_t k = a; k < b; ++k) {
        inside.push_back(releases_inside(slots[k - a][p], blocks[k]));
        invariant = invariant && slots[k - a][p] == slots[0][p];
      }
      const size_t count = static_cast<size_t>(std::count(inside.begin(), inside.end(), true));
      if (count == 0 || count == inside.size()) continue;
      if (invariant) {  // one tensor that all instances read
        move_release(slots[0][p], end);
        continue;
      }
      // A tensor that the first (or the last) instance must not release: that one stands alone.
      if (!inside.front())
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(a));
      else
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(b - 1));
      drop_lone_blocks();
      return false;
    }
    return true;
  }

  void drop_lone_blocks() {
    std::map<int, int> count;
    for (const BlockRun& run : segment_.blocks) ++count[run.body];
    std::erase_if(segment_.blocks, [&](const BlockRun& run) { return count[run.body] < 2; });
  }

  void move_release(int slot, size_t to) {
    auto& from = after_[last_.at(slot)];
    std::erase(from, slot);
    last_[slot] = to;
    outside_[to].push_back(slot);
  }

  // Moves releases down to others where that keeps no memory longer. Instances of a block are alike
  // in all that this looks at, so they stay alike.
  void gather() {
    size_t from = 0;
    for (const BlockRun& run : segment_.blocks) {
      gather(from, run.first);
      gather(run.first, run.last);
      from = run.last;
    }
    gather(from, segment_.instrs.size());
  }

  // Whether a slot that is not released among instructions from `first` on, where others of its
  // memory are, still looks at it behind them.
  bool outlives(int slot, size_t first) const {
    if (taken_.contains(slot)) return false;
    if (!owned(slot)) return true;
    const auto use = last_.find(slot);  // none: gone with an earlier segment
    return use != last_.end() && use->second >= first;
  }

  void gather(size_t first, size_t last) {
    std::map<int, size_t> at;  // slot → where it is released
    for (auto it = after_.lower_bound(first); it != after_.end() && it->first < last; ++it)
      for (int slot : it->second) at[slot] = it->first;
    // Memory is free when the last of what looks at it is released; what looks at memory that stays
    // can be released at any time.
    struct Fate {
      size_t end = 0;
      bool stays = false;
    };
    std::map<int, Fate> fates;  // by root
    for (const auto& [slot, own] : at) {
      const int root = storage_.root(slot);
      const auto [fate, fresh] = fates.try_emplace(root);
      if (!fresh) continue;
      for (int other : storage_.members(root)) {
        const auto it = at.find(other);
        if (it != at.end())
          fate->second.end = std::max(fate->second.end, it->second);
        else
          fate->second.stays = fate->second.stays || outlives(other, first);
      }
    }
    std::map<size_t, std::vector<int>> bound, loose;
    for (const auto& [slot, own] : at) {
      const Fate& fate = fates.at(storage_.root(slot));
      (fate.stays ? loose[own] : bound[fate.end]).push_back(slot);
    }
    // Nothing is taken between here and the next: memory may as well be freed there.
    for (auto it = bound.rbegin(); it != bound.rend(); ++it) {
      const auto next = bound.upper_bound(it->first);
      if (next == bound.end()) continue;
      bool quiet = true;
      for (size_t i = it->first + 1; i <= next->first && quiet; ++i)
        quiet = !storage_.allocates(segment_.instrs[i]);
      if (!quiet) continue;
      next->second.insert(next->second.end(), it->second.begin(), it->second.end());
      it->second.clear();
    }
    std::erase_if(bound, [](const auto& entry) { return entry.second.empty(); });
    for (auto& [i, slots] : loose) {
      const auto next = bound.lower_bound(i);
      auto& list = next == bound.end() ? bound[i] : next->second;
      list.insert(list.end(), slots.begin(), slots.end());
    }
    for (const auto& [slot, i] : at) after_.erase(i);
    for (auto& [i, slots] : bound) after_[i] = std::move(slots);
  }

  void write() {
    std::vector<Instr> result;
    std::vector<size_t> start(segment_.instrs.size() + 1);
    std::set<size_t> block_ends;
    for (const BlockRun& run : segment_.blocks) block_ends.insert(run.last - 1);
    std::map<size_t, size_t> end_of;  // of blocks, after their own releases
    const auto release = [&](std::vector<int>& slots, const Instr& after) {
      if (slots.empty()) return;
      std::sort(slots.begin(), slots.end());
      Instr instr;
      instr.kind = InstrKind::release;
      instr.node = after.node;
      instr.module = after.module;
      for (int slot : slots) instr.args.push_back({"", Ref{slot}});
      result.push_back(std::move(instr));
    };
    for (size_t i = 0; i < segment_.instrs.size(); ++i) {
      start[i] = result.size();
      result.push_back(std::move(segment_.instrs[i]));
      const Instr copy = result.back();
      release(after_[i], copy);
      end_of[i] = result.size();
      release(outside_[i], copy);
    }
    for (BlockRun& run : segment_.blocks) {
      run.first = start[run.first];
      run.last = end_of[run.last - 1];
    }
    segment_.instrs = std::move(result);
  }

  const Program& program_;
  Segment& segment_;
  const Storage& storage_;
  std::set<int> kept_, taken_;
  std::map<int, size_t> last_;
  std::map<size_t, std::vector<int>> after_, outside_;
};

}  // namespace

void insert_releases(Program& program) {
  const Storage storage(program);
  for (Segment& segment : program.segments) Releases(program, segment, storage).run();
}

}  // namespace nns::lower
