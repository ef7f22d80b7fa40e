// Tensors that wait for a later segment: in the table of the block instance that has them, or of
// the stage.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/file.h"
#include "codegen/lists.h"
#include "codegen/literals.h"
#include "lower/uses.h"

namespace nns::codegen {

namespace {

BlockSlots slots_of(const Program& program, const Segment& segment, const BlockRun& run,
                    const std::set<int>& read_later) {
  BlockSlots slots;
  std::set<int> made;
  const auto see = [&](int slot) {
    return slots.number.emplace(slot, static_cast<int>(slots.number.size())).second;
  };
  for (size_t i = run.first; i < run.last; ++i) {
    const Instr& instr = segment.instrs[i];
    for (int slot : lower::reads(instr)) {
      const auto role = program.slot(slot).role;
      if (role == lower::SlotRole::parameter || role == lower::SlotRole::buffer ||
          role == lower::SlotRole::constant || role == lower::SlotRole::cast)
        continue;
      if (see(slot) && !made.contains(slot)) slots.externals.push_back(slot);
    }
    for (int out : instr.outs) {
      if (out < 0) continue;
      see(out);
      made.insert(out);
      if (read_later.contains(out)) slots.results.push_back(out);
    }
  }
  return slots;
}

}  // namespace

const std::set<int>& FileWriter::read_outside(const Segment& segment) {
  auto [it, fresh] = read_outside_.emplace(&segment, std::set<int>{});
  if (!fresh) return it->second;
  std::map<int, const BlockRun*> maker;
  for (size_t i = 0; i < segment.instrs.size(); ++i) {
    const BlockRun* here = block_at(segment, i);
    for (int slot : lower::reads(segment.instrs[i]))
      if (const auto made = maker.find(slot); made != maker.end() && made->second != here)
        it->second.insert(slot);
    for (int out : segment.instrs[i].outs)
      if (out >= 0) maker[out] = here;
  }
  it->second.insert(segment.outputs.begin(), segment.outputs.end());
  return it->second;
}

const BlockSlots& FileWriter::block_slots(const Segment& segment, const BlockRun& run) {
  const auto known = block_slots_.find(&run);
  if (known != block_slots_.end()) return known->second;
  return block_slots_[&run] = slots_of(program_, segment, run, read_outside(segment));
}

const Series* FileWriter::series_of(const Segment& segment, int slot) {
  const auto [it, fresh] = series_.try_emplace(&segment);
  AllSeries& all = it->second;
  const auto add = [&](Series series) {
    for (int member : series.slots)
      if (member >= 0) all.of[member] = all.list.size();
    all.list.push_back(std::move(series));
  };
  if (fresh) {
    for (const lower::Loop& loop : segment.loops)
      for (size_t p = loop.first; p < loop.first + loop.size; ++p)
        for (size_t q = 0; q < segment.instrs[p].outs.size(); ++q) {
          if (segment.instrs[p].outs[q] < 0) continue;
          Series series;
          for (size_t turn = 0; turn < loop.count; ++turn)
            series.slots.push_back(segment.instrs[p + turn * loop.size].outs[q]);
          add(std::move(series));
        }
    for (const Instr& instr : segment.instrs)
      if (instr.outs.size() > kMany && instr.outs[0] >= 0 && !all.of.contains(instr.outs[0]))
        add({instr.outs, 1});
  }
  const auto found = all.of.find(slot);
  return found == all.of.end() ? nullptr : &all.list[found->second];
}

const std::vector<size_t>& FileWriter::last_use(const Segment& segment) {
  const auto [it, fresh] = last_use_.try_emplace(&segment, program_.slots.size(), 0);
  if (!fresh) return it->second;
  for (size_t i = 0; i < segment.instrs.size(); ++i)
    for (int slot : lower::reads(segment.instrs[i])) it->second[static_cast<size_t>(slot)] = i;
  for (const auto* list : {&segment.outputs, &segment.saved_out})
    for (int slot : *list) it->second[static_cast<size_t>(slot)] = SIZE_MAX;
  return it->second;
}

void FileWriter::begin_stage(size_t first) {
  stage_.clear();
  for (size_t i = first; i < program_.segments.size(); ++i) {
    if (i > first && program_.segments[i].kind == lower::SegmentKind::forward) break;
    stage_.push_back(&program_.segments[i]);
  }
  maker_.clear();
  top_.clear();
  top_field_.clear();
  elsewhere_.clear();
  list_field_.clear();
  started_.clear();
}

void FileWriter::collect_saved() {
  for (const Segment* segment : stage_)
    for (int slot : segment->saved_out) maker_[slot] = segment;
  Names names({});
  for (const Segment* maker : stage_) {
    collect_made_in(*maker);
    for (const Run& run : runs_of(*maker)) {
      const std::string list = list_of(maker->blocks[run.first].path);
      if (!list_field_.contains(list)) list_field_[list] = names.fresh(last_part(list));
    }
    // Instances at one path share a table: what later segments keep there has other names.
    std::set<std::string> used;
    for (const auto& [body, fields] : kept_)
      for (const auto& [number, field] : fields) used.insert(field.substr(2, field.find('[') - 2));
    taken_ = std::move(used);
  }
  for (int slot : std::set<int>(top_)) {
    if (top_field_.contains(slot)) continue;
    const std::string field = "s." + names.fresh(hint(slot));
    const Segment* maker = maker_.at(slot);
    const Series* series = series_of(*maker, slot);
    if (series == nullptr) {
      top_field_[slot] = field;
      continue;
    }
    for (size_t k = 0; k < series->slots.size(); ++k) {
      const int member = series->slots[k];
      if (member < 0) continue;
      maker_[member] = maker;
      top_field_[member] = fmt::format("{}[{}]", field, series->first + static_cast<int64_t>(k));
    }
  }
}

void FileWriter::collect_made_in(const Segment& maker) {
  std::map<int, const BlockRun*> block;
  std::map<std::string, const std::map<int, int>*> numbers;  // by path
  for (const BlockRun& run : maker.blocks) {
    for (size_t i = run.first; i < run.last; ++i)
      for (int out : maker.instrs[i].outs)
        if (out >= 0) block[out] = &run;
    numbers[run.path] = &block_slots(maker, run).number;
  }
  for (const Segment* user : stage_) {
    if (user == &maker) continue;
    for (size_t i = 0; i < user->instrs.size(); ++i) {
      const BlockRun* run = block_at(*user, i);
      for (int slot : lower::reads(user->instrs[i])) {
        if (!is_saved(*user, slot) || maker_.at(slot) != &maker) continue;
        if (run != nullptr) {
          const auto it = numbers.find(run->path);
          if (it != numbers.end() && it->second->contains(slot)) {
            keep(maker, *block_named(maker, run->path), slot);
            continue;
          }
        }
        if (const auto made = block.find(slot);
            made != block.end() && !(read_outside(maker).contains(slot))) {
          keep(maker, *made->second, slot);
          elsewhere_[slot] = made->second->path;
        } else {
          top_.insert(slot);
        }
      }
    }
  }
}

void FileWriter::keep(const Segment& maker, const BlockRun& run, int slot) {
  const BlockSlots& slots = block_slots(maker, run);
  auto& fields = kept_[run.body];
  if (fields.contains(slots.number.at(slot))) return;
  auto& names = kept_names_.try_emplace(run.body, taken_).first->second;
  const std::string field = "s." + names.fresh(hint(slot));
  const Series* series = series_of(maker, slot);
  const bool external =
      std::find(slots.externals.begin(), slots.externals.end(), slot) != slots.externals.end();
  if (series == nullptr || external) {
    fields[slots.number.at(slot)] = field;
    return;
  }
  for (size_t k = 0; k < series->slots.size(); ++k)
    if (series->slots[k] >= 0)
      fields[slots.number.at(series->slots[k])] =
          fmt::format("{}[{}]", field, series->first + static_cast<int64_t>(k));
}

std::string FileWriter::instance_table(const std::string& path) const {
  return fmt::format("s.{}[{}]", list_field_.at(list_of(path)), last_part(path));
}

std::string FileWriter::saved_expression(int slot) {
  if (const auto it = top_field_.find(slot); it != top_field_.end()) return it->second;
  const std::string& path = elsewhere_.at(slot);
  const Segment& maker = *maker_.at(slot);
  const BlockRun* run = block_named(maker, path);
  const int number = block_slots(maker, *run).number.at(slot);
  return instance_table(path) + kept_.at(run->body).at(number).substr(1);
}

std::string FileWriter::kept_by_twin(const std::string& path, int slot) {
  const Segment& maker = *maker_.at(slot);
  const BlockRun* twin = block_named(maker, path);
  if (twin == nullptr) return {};
  const auto& numbers = block_slots(maker, *twin).number;
  const auto number = numbers.find(slot);
  return number == numbers.end() ? std::string() : kept_.at(twin->body).at(number->second);
}

bool FileWriter::is_saved(const Segment& segment, int slot) {
  return std::binary_search(segment.saved_in.begin(), segment.saved_in.end(), slot);
}

const BlockRun* FileWriter::block_at(const Segment& segment, size_t instr) {
  for (const BlockRun& run : segment.blocks)
    if (instr >= run.first && instr < run.last) return &run;
  return nullptr;
}

const BlockRun* FileWriter::block_named(const Segment& segment, const std::string& path) {
  for (const BlockRun& run : segment.blocks)
    if (run.path == path) return &run;
  return nullptr;
}

void FileWriter::store_top(const Segment& segment, int slot, FunctionWriter& w) {
  const auto it = top_field_.find(slot);
  if (it == top_field_.end() || maker_.at(slot) != &segment) return;
  w.need("s");
  w.raw(fmt::format("{} = {}", it->second, w.expression(slot)));
}

std::string FileWriter::outer(const Segment& segment, int slot, FunctionWriter& w) {
  if (is_saved(segment, slot)) {
    w.need("s");
    return saved_expression(slot);
  }
  return w.expression(slot);
}

}  // namespace nns::codegen
