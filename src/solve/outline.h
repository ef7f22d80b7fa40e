// Outline: a space as one linear program can state it. Each value with all that read it, and of
// each step the ways to run it, told apart by all that others see of them: how operands must lie,
// how results lie, and which of their memory backward keeps.
//
// Steps may be put into classes: those at one place of segments that repeat. A class has the mean
// of what its steps do, which keeps all that is linear; so a program over classes has a bound for
// the whole graph, whatever number of layers it has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "solve/space.h"

namespace nns::solve {

// What is stated.
struct Question {
  std::optional<int64_t> memory = {};  // bytes of what rests and what a micro-batch keeps
  int zero = plan::Zero::none;         // level at which weights rest in shards
  bool recompute = false;              // whether blocks may run again in backward
  bool classes = false;                // whether repeated segments are one
};

// How a value is made, as far as its readers see it.
struct Variant {
  Code made = kWhole;  // of a leaf that rests: its home
  bool contiguous = true;
  bool kept = false;    // what it lies in is there until the micro-batch's backward
  bool again = false;   // its block runs again in backward
  bool needed = false;  // … and so does its call
  auto operator<=>(const Variant&) const = default;
};

// A way to run a step.
struct Mode {
  size_t candidate = 0;
  const CallPiece* piece = nullptr;  // nullptr: no call
  uint32_t cares = 0, strided = 0;   // operands whose strides matter, and which are not plain
  bool again = false, runs = false;  // its block runs again; so does the call
  std::vector<bool> keeps;           // by operand: a result lies in it, and is kept
  std::vector<Variant> results;      // by Step::results
  double seconds = 0;                // of a step
  int64_t bytes = 0;                 // that it makes and backward keeps
};

// What a mode wants of an operand; modes that want the same are one flow of the value to its
// reader.
struct Want {
  Code code = kWhole;
  int strided = -1;  // 0, 1; −1: no matter
  int gradients = 0;
  bool read = false;    // backward reads it
  bool kept = false;    // what is read stays until the micro-batch's backward
  bool again = false;   // the reader's block runs again
  bool needed = false;  // … and needs it then
  bool runs = false;    // … for the reader
  bool free = false;    // it only says how a weight rests
  bool update = false;  // a buffer becomes it
  double spared_sum = 0, spared_gradient = 0;
  auto operator<=>(const Want&) const = default;
};

// An operand of a class of steps, or behind those one of the step's updates of buffers.
struct Reader {
  int of = 0, operand = 0;
  int times = 1;        // how many operands of such steps read one value
  bool inside = false;  // the value is made in the same segment
  auto operator<=>(const Reader&) const = default;
};

// Values that the same classes of steps make and read.
struct Object {
  Live live;
  bool single = false;          // a leaf that rests as its only reader wants it
  int maker = -1, result = -1;  // class of steps and place in Step::results; −1: a leaf
  std::vector<Reader> readers;
  int count = 1;  // values
  std::vector<Variant> variants;
};

struct StepClass {
  int step = 0;      // in Space::steps
  size_t place = 0;  // of the first of them in the sequence
  int count = 1;
  int segment = -1;  // number among segments that may run again
  std::vector<Mode> modes;
  // Objects that are read, by operand and update, and those whose homes updates take, by update:
  // with how many steps do.
  std::vector<std::map<int, int>> operands, homes;
  std::vector<std::set<int>> results;  // objects that are made, by Step::results
};

class Outline {
 public:
  Outline(const Space& space, const Question& question);

  const Question& question() const { return question_; }
  const Space& space() const { return space_; }
  const std::vector<StepClass>& classes() const { return classes_; }
  const std::vector<Object>& objects() const { return objects_; }
  int segments() const { return segments_; }  // that may run again
  const Step& step(const StepClass& of) const;
  // How values in a layout come to another one; nothing: a weight that rests so.
  const ConversionPiece* conversion(const Object& object, Code made, Code code) const;
  // Whether a weight or buffer rests as its readers say.
  bool decides(const Object& object) const;
  Want want(const StepClass& of, const Mode& mode, int operand) const;
  // Whether a value of this variant can be read so.
  bool serves(const Object& object, const Reader& reader, const Variant& variant,
              const Want& want) const;

 private:
  void find_classes();
  void find_objects();
  void find_homes();
  bool find_modes(StepClass& of);
  void add_modes(StepClass& of, size_t candidate);
  void add_kept(StepClass& of, const Mode& plain);
  void add_again(StepClass& of, const Mode& plain);
  bool strided(const Object& object, const Variant& variant, Code code) const;

  const Space& space_;
  const Question question_;
  std::vector<StepClass> classes_;
  std::vector<int> class_of_, segment_of_;  // by place
  std::vector<Object> objects_;
  int segments_ = 0;
};

}  // namespace nns::solve
