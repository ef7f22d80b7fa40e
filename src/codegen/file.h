// A generated file in the making: functions of repeated blocks, segments, and where tensors that
// wait for a later segment are kept.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "codegen/function.h"
#include "codegen/head.h"
#include "lower/block.h"

namespace nns::codegen {

using lower::BlockRun;
using lower::Segment;

inline constexpr size_t kWidth = 98;

// Of "transformer.h.3": "transformer.h".
inline std::string list_of(const std::string& path) {
  return path.substr(0, path.rfind('.'));
}
// Of "transformer.h.3": "3".
inline std::string last_part(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

// Slots of one block instance in the order of their first occurrence: equal numbers in all
// instances of a body.
struct BlockSlots {
  std::vector<int> externals;  // read, made elsewhere, in order
  std::vector<int> results;    // made here and used by later instructions, in order
  std::map<int, int> number;   // slot → position of first occurrence
};

// What is written once for all instances of a block.
struct Body {
  std::string name;                 // of its function: "h_forward"
  std::vector<std::string> tables;  // of kTables, taken as parameters
  std::vector<size_t> arguments;    // indices of externals that are passed
  bool arguments_in_table = false, results_in_table = false;  // where there are too many
  // Of the function that begins the gathers of an instance; tables empty: it is not written.
  std::vector<std::string> ahead_tables;
};

// Slots that one table keeps: results of the turns of a loop, or of one call that gives many.
struct Series {
  std::vector<int> slots;
  int64_t first = 0;  // index of the first in the table
};

class FileWriter {
 public:
  explicit FileWriter(const Program& program)
      : program_(program), operators_(program), groups_(program) {
    const auto names = groups_.all_names();
    reserved_.insert(names.begin(), names.end());
  }

  std::string body();

 private:
  struct Run {           // neighbouring instances of one body
    size_t first, last;  // indices into Segment::blocks
  };
  static std::vector<Run> runs_of(const Segment& segment);
  static const BlockRun* block_at(const Segment& segment, size_t instr);
  static const BlockRun* block_named(const Segment& segment, const std::string& path);
  // Slots of a segment that something after their block reads.
  const std::set<int>& read_outside(const Segment& segment);
  const BlockSlots& block_slots(const Segment& segment, const BlockRun& run);
  // The series that a slot of the segment belongs to, or nullptr.
  const Series* series_of(const Segment& segment, int slot);
  // By slot: the last instruction of the segment that reads it, SIZE_MAX: read after all of them.
  const std::vector<size_t>& last_use(const Segment& segment);
  // The statements of instrs [first, last), which no block covers or one does.
  void write_instrs(const Segment& segment, size_t first, size_t last, FunctionWriter& w);
  // Where the function of the segment that is written may be cut: numbers of lines.
  std::vector<size_t> cuts_;
  const FunctionWriter* whole_ = nullptr;  // of the segment
  // The segments of the next stage, which hand tensors on among themselves.
  void begin_stage(size_t first);
  // Decides where each saved tensor is kept: in the table of a block instance that has it, or of
  // the stage.
  void collect_saved();
  void collect_made_in(const Segment& maker);
  std::string hint(int slot) const { return last_part(program_.slot(slot).name); }
  void keep(const Segment& maker, const BlockRun& run, int slot);
  // The saved table of an instance: s.h[3].
  std::string instance_table(const std::string& path) const;
  // How a saved slot is reached in the backward segment outside of the instance that kept it.
  std::string saved_expression(int slot);
  Body& body_of(const Segment& segment, const Run& run);
  // The field in which the instance at `path` of the segment that makes a slot keeps it, or "".
  std::string kept_by_twin(const std::string& path, int slot);
  static bool is_saved(const Segment& segment, int slot);
  static std::set<std::string> reserved_names();
  // For each passed external of a body: the result that the instance before made of it, or nothing
  // when it is one tensor for all. No value at all when the run is not a loop.
  std::optional<std::vector<std::optional<size_t>>> carried(const Segment& segment, const Run& run,
                                                            const Body& body);
  std::string table_argument(const std::string& table, const std::string& list,
                             const std::string& index, FunctionWriter& w);
  std::string call_text(const Body& body, const std::string& list, const std::string& index,
                        const std::vector<std::string>& arguments, FunctionWriter& w);
  // What stands before the "=" of a call of a block outside of a loop.
  std::string result_text(const Body& body, const std::vector<int>& results, FunctionWriter& w);
  void write_run(const Segment& segment, const Run& run, FunctionWriter& w);
  // Whether the gathers of a block of the run begin with the block before it.
  static bool gathers_ahead(const Segment& segment, const Run& run);
  // In a loop over the run: the index of the instance after that with index i.
  static std::string next_index(const Segment& segment, const Run& run);
  // The call that begins the gathers of the instance with this index.
  std::string ahead_text(const Segment& segment, const Run& run, const std::string& index,
                         FunctionWriter& w);
  void write_single(const Segment& segment, const BlockRun& block, const Body& body,
                    const std::string& first_line, FunctionWriter& w);
  // Keeps a slot for later segments, where it is one of those.
  void store_top(const Segment& segment, int slot, FunctionWriter& w);
  static bool read_here(const Segment& segment, int slot);
  // Expression of a slot at the level of the segment.
  std::string outer(const Segment& segment, int slot, FunctionWriter& w);
  std::string nest_text(const graph::Nest& nest, FunctionWriter& w);
  // The parameter `seed` of a backward, or a field of it where it is a list.
  std::string seed_name(int slot) const;
  // The gradients of inputs that a backward returns, by name.
  std::string gradients_text(FunctionWriter& w) const;
  std::string write_segment(const Segment& segment);
  // The function of a segment, or several where LuaJIT does not take it as one.
  std::string function_text(const Segment& segment, const FunctionWriter& w,
                            const std::vector<size_t>& cuts) const;
  // Functions are locals of the file, of which LuaJIT allows 200.
  bool segments_in_table() const { return program_.segments.size() > 60; }
  // The function that casts weights, in loops over the instances of lists of modules; nothing where
  // there is none.
  std::string casts_text();
  // Lines that start what may after this many instructions: sums, and gathers of the first block of
  // a run.
  void start(const Segment& segment, size_t after, FunctionWriter& w);
  // Starts of sums in the loop over instances of a block.
  static void start_sums(const Segment& segment, const Run& run, FunctionWriter& w);

  const Program& program_;
  Operators operators_;
  Groups groups_;
  std::set<std::string> reserved_ = reserved_names();
  std::vector<const Segment*> stage_;    // segments of the stage that is written
  std::map<int, const Segment*> maker_;  // of its saved slots
  std::set<std::string> taken_;          // names of fields that earlier segments keep
  std::map<const Segment*, std::set<int>> read_outside_;
  std::map<const Segment*, std::vector<size_t>> last_use_;
  std::map<const BlockRun*, BlockSlots> block_slots_;
  struct AllSeries {
    std::vector<Series> list;
    std::map<int, size_t> of;  // slot → index
  };
  std::map<const Segment*, AllSeries> series_;
  std::map<int, std::map<int, std::string>> kept_;  // forward body → number → field
  std::map<int, Names> kept_names_;
  std::set<int> top_;
  std::map<int, std::string> top_field_;
  std::map<int, std::string> elsewhere_;  // slot → path of the instance that keeps it
  std::map<std::string, std::string> list_field_;
  std::set<std::string> started_;  // lists and instances that have a table
  std::map<int, Body> bodies_;
  Names body_names_{{}};
  std::string functions_;
};

}  // namespace nns::codegen
