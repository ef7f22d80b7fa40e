// Annotations applied to shapes: lengths of identifiers, legal splits and what they do.
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "annotate/grammar.h"
#include "base/error.h"

namespace nns::annotate {
namespace {

using Lengths = std::map<std::string, int64_t>;

// How a mismatch is reported up; nothing means it fits.
using Mismatch = std::optional<std::string>;

Mismatch learn(Lengths& lengths, const std::string& name, int64_t size) {
  const auto [known, added] = lengths.emplace(name, size);
  if (added || known->second == size) return {};
  return fmt::format("'{}' is {} and {}", name, known->second, size);
}

// Replaces `*` by as many dims as the shape has left. Every `*` becomes the same letters.
Mismatch expand(std::vector<ShapeNote>& notes, const std::vector<Shape>& shapes,
                const std::vector<std::string>& letters, std::optional<size_t>& width) {
  for (size_t i = 0; i < notes.size(); ++i) {
    ShapeNote& note = notes[i];
    if (note.ignored) continue;
    const auto star =
        std::find_if(note.dims.begin(), note.dims.end(), [](const Dim& d) { return d.star; });
    const bool scalar = note.dims.size() == 1 && note.dims[0].parts[0].literal == 1;
    if (scalar && shapes[i].empty()) {  // "1" also stands for a tensor without dims
      note.dims.clear();
      continue;
    }
    const size_t explicit_dims = note.dims.size() - (star == note.dims.end() ? 0 : 1);
    if (star == note.dims.end() ? explicit_dims != shapes[i].size()
                                : explicit_dims > shapes[i].size())
      return fmt::format("{} has {} dims; the annotation {}", to_string(shapes[i]),
                         shapes[i].size(), explicit_dims);
    if (star == note.dims.end()) continue;
    const size_t count = shapes[i].size() - explicit_dims;
    if (width && *width != count) return fmt::format("'*' is {} dims and {}", *width, count);
    width = count;
    const Mark mark = star->parts[0].mark;
    std::vector<Dim> fresh;
    for (size_t k = 0; k < count; ++k) fresh.push_back({false, false, {{letters[k], mark, {}}}});
    const auto at = note.dims.erase(star);
    note.dims.insert(at, fresh.begin(), fresh.end());
  }
  return {};
}

// Single letters that the annotation does not use, then a1, b1, …
std::vector<std::string> unused_letters(const Annotation& annotation, size_t count) {
  std::set<std::string> used;
  for (const auto* side : {&annotation.inputs, &annotation.outputs})
    for (const ShapeNote& note : *side)
      for (const Dim& dim : note.dims)
        for (const Identifier& id : dim.parts) used.insert(id.name);
  std::vector<std::string> out;
  for (int round = 0; out.size() < count; ++round)
    for (char c = 'a'; c <= 'z' && out.size() < count; ++c) {
      std::string name(1, c);
      if (round > 0) name += std::to_string(round);
      if (!used.contains(name)) out.push_back(name);
    }
  return out;
}

// One pass over a side: plain dims give lengths, brackets with one unknown are solved. Returns
// whether something is still unknown through `open`.
Mismatch solve(const std::vector<ShapeNote>& notes, const std::vector<Shape>& shapes,
               Lengths& lengths, bool& open) {
  for (size_t i = 0; i < notes.size(); ++i) {
    for (size_t d = 0; !notes[i].ignored && d < notes[i].dims.size(); ++d) {
      const Dim& dim = notes[i].dims[d];
      int64_t known = 1;
      std::vector<std::string> unknown;
      for (const Identifier& id : dim.parts) {
        if (id.literal)
          known *= *id.literal;
        else if (const auto it = lengths.find(id.name); it != lengths.end())
          known *= it->second;
        else
          unknown.push_back(id.name);
      }
      const int64_t size = shapes[i][d];
      if (unknown.empty()) {
        if (known != size)
          return fmt::format("dim {} of {} should be {}", d, to_string(shapes[i]), known);
      } else if (unknown.size() == 1) {
        if (known == 0 || size % known != 0)
          return fmt::format("dim {} of {} is not a multiple of {}", d, to_string(shapes[i]),
                             known);
        if (auto m = learn(lengths, unknown[0], size / known)) return m;
      } else {
        open = true;
      }
    }
  }
  return {};
}

}  // namespace

std::optional<Binding> Binding::bind(const Annotation& annotation, const std::vector<Shape>& inputs,
                                     const std::vector<Shape>& outputs, const Lengths& arguments,
                                     std::string* why) {
  const auto refuse = [why](std::string text) {
    if (why != nullptr) *why = std::move(text);
    return std::nullopt;
  };
  if (annotation.inputs.size() != inputs.size() || annotation.outputs.size() != outputs.size())
    return refuse(fmt::format("it has {} inputs and {} outputs; the call {} and {}",
                              annotation.inputs.size(), annotation.outputs.size(), inputs.size(),
                              outputs.size()));
  Binding b;
  b.text_ = annotation.text();
  b.inputs_ = annotation.inputs;
  b.outputs_ = annotation.outputs;
  size_t deepest = 0;
  for (const auto* side : {&inputs, &outputs})
    for (const Shape& shape : *side) deepest = std::max(deepest, shape.size());
  const auto letters = unused_letters(annotation, deepest);
  std::optional<size_t> width;
  if (auto m = expand(b.inputs_, inputs, letters, width)) return refuse(*m);
  if (auto m = expand(b.outputs_, outputs, letters, width)) return refuse(*m);

  // Lengths come from dims; an identifier that only brackets hold may be an argument.
  for (int round = 0; round < 2; ++round) {
    bool open = true;
    for (size_t known = 0; open;) {
      open = false;
      if (auto m = solve(b.inputs_, inputs, b.lengths_, open)) return refuse(*m);
      if (auto m = solve(b.outputs_, outputs, b.lengths_, open)) return refuse(*m);
      if (b.lengths_.size() == known) break;
      known = b.lengths_.size();
    }
    if (!open) break;
    if (round == 1) return refuse("lengths inside a bracket cannot be told apart");
    for (const auto* side : {&b.inputs_, &b.outputs_})
      for (const ShapeNote& note : *side)
        for (const Dim& dim : note.dims)
          for (const Identifier& id : dim.parts)
            if (const auto it = arguments.find(id.name); it != arguments.end())
              b.lengths_.emplace(id.name, it->second);
  }
  // An identifier inside a bracket behind one longer than 1 cannot be split anywhere.
  for (const bool output : {false, true})
    for (const ShapeNote& note : output ? b.outputs_ : b.inputs_)
      for (const Dim& dim : note.dims) {
        const Identifier* lead = b.leading(dim);
        for (const Identifier& id : dim.parts) {
          if (id.literal) continue;
          Mark& mark = b.marks_.try_emplace(id.name, id.mark).first->second;
          if (id.mark == Mark::frozen || (lead != &id && b.lengths_.at(id.name) != 1))
            mark = Mark::frozen;
        }
      }
  return b;
}

// The first identifier of a dim that is longer than 1 (the last one if all are 1).
const Identifier* Binding::leading(const Dim& dim) const {
  for (const Identifier& id : dim.parts) {
    const int64_t size = id.literal ? *id.literal : lengths_.at(id.name);
    if (size != 1) return &id;
  }
  return &dim.parts.back();
}

std::optional<std::string> Binding::identifier(int input, int dim) const {
  if (input < 0 || input >= static_cast<int>(inputs_.size())) return {};
  for (const auto& [name, rule] : rules_)
    if (rule.input == input && rule.dim == dim) return name;
  const ShapeNote& note = inputs_[static_cast<size_t>(input)];
  const int rank = static_cast<int>(note.dims.size());
  if (dim < 0) dim += rank;
  if (note.ignored || dim < 0 || dim >= rank) return {};
  const Identifier* id = leading(note.dims[static_cast<size_t>(dim)]);
  if (id->literal || marks_.at(id->name) == Mark::frozen) return {};
  return id->name;
}

int64_t Binding::length(const std::string& identifier) const {
  return lengths_.at(identifier);
}

bool Binding::stands_alone(const std::string& identifier) const {
  for (const auto* side : {&inputs_, &outputs_})
    for (const ShapeNote& note : *side)
      for (const Dim& dim : note.dims) {
        bool holds = false, more = false;
        for (const Identifier& id : dim.parts) {
          if (id.name == identifier)
            holds = true;
          else
            more = more || (id.literal ? *id.literal : lengths_.at(id.name)) != 1;
        }
        if (holds && more) return false;
      }
  return true;
}

std::optional<std::string> Binding::refusal(int input, int dim, int64_t parts, bool uneven) const {
  const auto id = identifier(input, dim);
  if (!id) return fmt::format("dim {} of input {} is never split", dim, input);
  if (parts < 1) return fmt::format("{} parts; expected 1 at least", parts);
  if (length(*id) % parts == 0) return {};
  uneven = uneven && !rules_.contains(*id);
  if (!uneven)
    return fmt::format("'{}' is {} long, which {} does not divide", *id, length(*id), parts);
  if (length(*id) < parts)
    return fmt::format("'{}' is {} long, too short for {} parts", *id, length(*id), parts);
  if (!stands_alone(*id))
    return fmt::format(
        "'{}' is {} long, which {} does not divide, and it is only part of a dim: uneven parts "
        "need a dim of its own",
        *id, length(*id), parts);
  return {};
}

std::optional<std::string> Binding::refusal(int input, int dim,
                                            const std::vector<int64_t>& sizes) const {
  const auto id = identifier(input, dim);
  if (!id) return fmt::format("dim {} of input {} is never split", dim, input);
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (sum != length(*id) ||
      std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 1; }))
    return fmt::format("sizes {} are not those of {} parts of '{}', which is {} long",
                       fmt::join(sizes, ","), sizes.size(), *id, length(*id));
  if (rules_.contains(*id))
    return fmt::format("'{}' is cut by a rule of the operator, which makes equal parts", *id);
  if (!stands_alone(*id))
    return fmt::format("'{}' is only part of a dim: given sizes need a dim of its own", *id);
  return {};
}

Split Binding::split(int input, int dim, int64_t parts, bool uneven) const {
  if (const auto why = refusal(input, dim, parts, uneven))
    fail(ErrorKind::plan, "[annotate.split] cannot split dim {} of input {} into {}: {}", dim,
         input, parts, *why);
  Split out;
  out.identifier = *identifier(input, dim);
  if (const auto rule = rules_.find(out.identifier); rule != rules_.end())
    return {out.identifier, rule->second.inputs, rule->second.outputs, rule->second.modify};
  const Mark mark = marks_.at(out.identifier);
  const auto place = [&](const ShapeNote& note, bool output) {
    TensorSplit t;
    for (size_t d = 0; d < note.dims.size(); ++d)
      for (const Identifier& id : note.dims[d].parts)
        if (id.name == out.identifier) t.axes.push_back(static_cast<int>(d));
    if (!t.axes.empty())
      t.kind = TensorSplit::Kind::dims;
    else if (output && mark == Mark::sum)
      t.kind = TensorSplit::Kind::value;
    const bool named = note.keeps.empty() || std::find(note.keeps.begin(), note.keeps.end(),
                                                       out.identifier) != note.keeps.end();
    t.keeps_gradient = note.keeps_gradient && named && t.axes.empty();
    return t;
  };
  for (const ShapeNote& note : inputs_) out.inputs.push_back(place(note, false));
  for (const ShapeNote& note : outputs_) out.outputs.push_back(place(note, true));
  return out;
}

std::vector<Place> Binding::transform_space() const {
  std::vector<Place> out;
  for (int i = 0; i < static_cast<int>(inputs_.size()); ++i)
    for (int d = 0; d < static_cast<int>(inputs_[static_cast<size_t>(i)].dims.size()); ++d)
      if (identifier(i, d)) out.push_back({i, d});
  for (const auto& [name, rule] : rules_)
    if (const Place place{rule.input, rule.dim};
        std::find(out.begin(), out.end(), place) == out.end())
      out.push_back(place);
  return out;
}

void Binding::add_rules(const std::vector<TransformRule>& rules, const std::vector<Shape>& inputs) {
  for (const TransformRule& rule : rules) {
    const auto fits = [&](const std::vector<TensorSplit>& splits, size_t count) {
      return splits.size() == count;
    };
    if (rule.input < 0 || static_cast<size_t>(rule.input) >= inputs.size() || rule.dim < 0 ||
        static_cast<size_t>(rule.dim) >= inputs[static_cast<size_t>(rule.input)].size())
      continue;  // of a call with other operands
    if (!fits(rule.inputs, inputs_.size()) || !fits(rule.outputs, outputs_.size()))
      fail(ErrorKind::plan,
           "[annotate.rule] the rule of input {} dim {} has {} inputs and {} outputs; the call {} "
           "and {}",
           rule.input, rule.dim, rule.inputs.size(), rule.outputs.size(), inputs_.size(),
           outputs_.size());
    const std::string name = fmt::format("rule of input {} dim {}", rule.input, rule.dim);
    const Shape& at = inputs[static_cast<size_t>(rule.input)];
    lengths_[name] = rule.length > 0 ? rule.length : at[static_cast<size_t>(rule.dim)];
    rules_[name] = rule;
  }
}

std::optional<std::vector<Shape>> output_shapes(const Annotation& annotation,
                                                const std::vector<Shape>& inputs,
                                                const Lengths& arguments, std::string* why) {
  const auto refuse = [why](std::string text) {
    if (why != nullptr) *why = std::move(text);
    return std::nullopt;
  };
  if (annotation.inputs.size() != inputs.size())
    return refuse(
        fmt::format("it has {} inputs; the call {}", annotation.inputs.size(), inputs.size()));
  size_t deepest = 0;
  for (const Shape& shape : inputs) deepest = std::max(deepest, shape.size());
  const auto letters = unused_letters(annotation, deepest);
  std::optional<size_t> width;
  std::vector<ShapeNote> notes = annotation.inputs;
  if (auto m = expand(notes, inputs, letters, width)) return refuse(*m);
  Lengths lengths;
  for (int round = 0; round < 2; ++round) {
    bool open = true;
    for (size_t known = 0; open;) {
      open = false;
      if (auto m = solve(notes, inputs, lengths, open)) return refuse(*m);
      if (lengths.size() == known) break;
      known = lengths.size();
    }
    if (round == 0) lengths.insert(arguments.begin(), arguments.end());
  }
  std::vector<Shape> out;
  for (const ShapeNote& note : annotation.outputs) {
    if (note.ignored) return refuse("an output is '?'");
    Shape shape;
    for (const Dim& dim : note.dims) {
      if (dim.star) {
        for (size_t k = 0; k < width.value_or(0); ++k) shape.push_back(lengths.at(letters[k]));
        continue;
      }
      int64_t size = 1;
      for (const Identifier& id : dim.parts) {
        if (!id.literal && !lengths.contains(id.name))
          return refuse(fmt::format("the length of '{}' is not known", id.name));
        size *= id.literal ? *id.literal : lengths.at(id.name);
      }
      shape.push_back(size);
    }
    out.push_back(std::move(shape));
  }
  return out;
}

}  // namespace nns::annotate
