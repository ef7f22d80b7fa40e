// Dimension annotations: how an operator may be split, as text.
//
//   m k+, k+ n -> m n        * (h d^) -> * h d^        ?, n^ -> n^        a b : /a -> a b
//
// Shapes are separated by commas, dims by spaces. A dim is an identifier, an integer, a bracket
// group (row-major product of identifiers), or `*` (any number of dims). A whole shape may be `?`:
// never split. Marks: none = spatial, `+` = contracted by sum, `^` = never split. Behind a shape,
// `: /id` says that the gradient of this input is not summed when the call is split on id (`/`
// alone: on any).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "graph/graph.h"

namespace nns::annotate {

using graph::NamedArg;

enum class Mark { spatial, sum, frozen };

// An identifier, or an integer literal (then `name` is its digits and `literal` its value).
struct Identifier {
  std::string name;
  Mark mark = Mark::spatial;
  std::optional<int64_t> literal;
};
struct Dim {
  bool star = false;  // `*`; its mark is that of parts[0]
  bool bracket = false;
  std::vector<Identifier> parts;  // one, or those of a bracket
};
struct ShapeNote {
  bool ignored = false;  // `?`
  std::vector<Dim> dims;
  bool keeps_gradient = false;     // `: /`
  std::vector<std::string> keeps;  // of `: /id /id`; empty with the flag: any
};

// A parsed annotation. Marks are made consistent: an identifier inside a bracket that does not lead
// is frozen wherever it occurs.
struct Annotation {
  std::vector<ShapeNote> inputs, outputs;

  // Throws a plan Error "[annotate.grammar] …" that names the text, the position and what was
  // expected.
  static Annotation parse(std::string_view text);
  std::string text() const;
};

// What a split makes of one tensor.
struct TensorSplit {
  enum class Kind { replicate, value, dims } kind = Kind::replicate;
  std::vector<int> axes;        // of kind dims
  bool keeps_gradient = false;  // a replicated input whose gradient is not to be summed
  bool operator==(const TensorSplit&) const = default;
};
// Arguments of part `part` of `parts`, from those of the whole call.
using Modify = std::function<std::vector<NamedArg>(const std::vector<NamedArg>& args, int64_t parts,
                                                   int64_t part)>;
struct Split {
  std::string identifier;
  std::vector<TensorSplit> inputs, outputs;
  Modify modify;  // of a transform rule; else empty
};
// A split that an operator declares itself: what cutting (input, dim) makes of every tensor and of
// the arguments. Goes before what the annotation says of that place.
struct TransformRule {
  int input = 0, dim = 0;
  std::vector<TensorSplit> inputs, outputs;
  Modify modify;
  int64_t length = 0;  // of what is cut; 0: that of the place
};

struct Place {
  int input = 0, dim = 0;
  bool operator==(const Place&) const = default;
};

// An annotation applied to the shapes of one call: `*` expanded, lengths known.
class Binding {
 public:
  // Lengths hidden inside brackets are taken from other dims, or from an integer argument of their
  // name. Returns nothing when ranks or lengths do not match; `why` then says so.
  static std::optional<Binding> bind(const Annotation& annotation, const std::vector<Shape>& inputs,
                                     const std::vector<Shape>& outputs,
                                     const std::map<std::string, int64_t>& arguments = {},
                                     std::string* why = nullptr);

  // The annotation that was bound.
  const std::string& text() const { return text_; }
  // Identifier on which splitting (input, dim) acts; nothing if that dim is never split. Negative
  // dims count from the end.
  std::optional<std::string> identifier(int input, int dim) const;
  int64_t length(const std::string& identifier) const;
  // Whether the dim splits into `parts` equal ones, or, where `uneven`, into ones that differ by
  // one (each tensor dim that the split cuts must be the identifier alone); the reason in words if
  // not.
  std::optional<std::string> refusal(int input, int dim, int64_t parts, bool uneven = false) const;
  // The same for parts of the given sizes.
  std::optional<std::string> refusal(int input, int dim, const std::vector<int64_t>& sizes) const;
  // What the split does to every tensor; throws a plan Error with the refusal.
  Split split(int input, int dim, int64_t parts, bool uneven = false) const;
  // Every (input, dim) that can be split at all.
  std::vector<Place> transform_space() const;
  // Rules of the operator, for operands of these shapes.
  void add_rules(const std::vector<TransformRule>& rules, const std::vector<Shape>& inputs);

 private:
  std::vector<ShapeNote> inputs_, outputs_;  // stars expanded
  std::string text_;
  std::map<std::string, int64_t> lengths_;
  std::map<std::string, Mark> marks_;
  std::map<std::string, TransformRule> rules_;  // by the identifier made up for each
  const Identifier* leading(const Dim& dim) const;
  // Whether every dim that holds the identifier holds nothing else longer than 1.
  bool stands_alone(const std::string& identifier) const;
};

// Shapes of the outputs that an annotation gives for those of the inputs; nothing where it does not
// fit, `why` then says so.
std::optional<std::vector<Shape>> output_shapes(const Annotation& annotation,
                                                const std::vector<Shape>& inputs,
                                                const std::map<std::string, int64_t>& arguments,
                                                std::string* why = nullptr);
}  // namespace nns::annotate
