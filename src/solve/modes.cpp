// The ways to run each step of an outline.
#include <algorithm>

#include "base/error.h"
#include "solve/outline.h"

namespace nns::solve {

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

// Whether two pieces of a candidate are one to a plan.
bool same(const CallPiece& a, const CallPiece& b) {
  const auto results = [](const CallPiece::Result& x, const CallPiece::Result& y) {
    return x.root == y.root && x.contiguous == y.contiguous;
  };
  const auto roots = [](const CallPiece::Root& x, const CallPiece::Root& y) {
    return x.bytes == y.bytes && x.kept == y.kept;
  };
  return a.forward.all() == b.forward.all() && a.backward.all() == b.backward.all() &&
         a.reads == b.reads && a.gradients == b.gradients && a.kept == b.kept &&
         a.spared_sum == b.spared_sum && a.spared_gradient == b.spared_gradient &&
         std::ranges::equal(a.results, b.results, results) &&
         std::ranges::equal(a.roots, b.roots, roots);
}

}  // namespace

// Returns whether the values that it makes have variants now that they did not have before.
bool Outline::find_modes(StepClass& of) {
  const Step& step = this->step(of);
  of.modes.clear();
  if (step.kind < 0) {
    of.modes.emplace_back();
    return false;
  }
  const size_t candidates = space_.kinds()[at(step.kind)].candidates.size();
  for (size_t c = 0; c < candidates; ++c) add_modes(of, c);
  bool more = false;
  for (size_t k = 0; k < step.results.size(); ++k) {
    std::set<Variant> made;
    for (const Mode& mode : of.modes) made.insert(mode.results[k]);
    for (int number : of.results[k]) {
      Object& object = objects_[at(number)];
      made.insert(object.variants.begin(), object.variants.end());
      more = more || object.variants.size() != made.size();
      object.variants.assign(made.begin(), made.end());
    }
  }
  return more;
}

// Whole calls differ by the strides of operands, some of which make no difference.
void Outline::add_modes(StepClass& of, size_t candidate) {
  const Step& step = this->step(of);
  const Candidate& cut = space_.kinds()[at(step.kind)].candidates[candidate];
  uint32_t fixed = 0;
  std::vector<uint32_t> open;  // bits
  for (size_t i = 0; i < step.operands.size() && i < 32; ++i) {
    bool plain = false, other = false;
    for (const auto& [number, times] : of.operands[i])
      for (const Variant& variant : objects_[at(number)].variants)
        (strided(objects_[at(number)], variant, cut.inputs[i]) ? other : plain) = true;
    if (plain && other) open.push_back(1u << i);
    if (other && !plain) fixed |= 1u << i;
  }
  // Of calls with too many such operands all lie plainly, which costs least.
  constexpr size_t kMost = 6;
  const bool too_many = open.size() > kMost;
  if (too_many) open.clear();
  const auto mask_of = [&](size_t choice) {
    uint32_t mask = fixed;
    for (size_t k = 0; k < open.size(); ++k)
      if (choice >> k & 1u) mask |= open[k];
    return mask;
  };
  for (size_t k = 0; k < open.size();) {
    bool alike = true;
    for (size_t choice = 0; choice < size_t{1} << open.size() && alike; ++choice)
      alike = same(space_.piece(of.step, candidate, mask_of(choice)),
                   space_.piece(of.step, candidate, mask_of(choice) ^ open[k]));
    if (alike)
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(k));
    else
      ++k;
  }
  Mode mode;
  mode.candidate = candidate;
  for (uint32_t bit : open) mode.cares |= bit;
  for (size_t choice = 0; choice < size_t{1} << open.size(); ++choice) {
    mode.strided = mask_of(choice);
    mode.piece = &space_.piece(of.step, candidate, mode.strided);
    mode.seconds = space_.problem().settings.micro_batches *
                   (mode.piece->forward.all() + mode.piece->backward.all());
    mode.keeps.assign(step.operands.size(), false);
    mode.results.clear();
    for (int k : step.result_of) {
      Variant variant;
      variant.made = cut.outputs[at(k)];
      variant.contiguous = too_many || mode.piece->results[at(k)].contiguous;
      mode.results.push_back(variant);
    }
    if (!question_.memory) {
      of.modes.push_back(mode);
      continue;
    }
    add_kept(of, mode);
    if (of.segment >= 0) add_again(of, mode);
  }
}

namespace {

// More choices than these are not told apart: then what they may keep takes no bytes.
constexpr size_t kMostChoices = 6;

// What results of a call lie in: roots of its own behind the operands.
std::vector<size_t> roots_of(const Step& step, const CallPiece& piece) {
  std::vector<size_t> out;
  for (int k : step.result_of) out.push_back(piece.results[at(k)].root);
  return out;
}

std::vector<size_t> choices_of(const std::set<size_t>& open) {
  if (open.size() > kMostChoices) return {};
  return {open.begin(), open.end()};
}

// Has a way to run a call hold what results lie in: memory of its own, or that of operands.
void hold(Mode& mode, const std::set<size_t>& stays, const Step& step) {
  const size_t operands = step.operands.size();
  for (size_t root : stays) {
    if (root >= operands)
      mode.bytes += mode.piece->roots[root - operands].bytes;
    else if (step.operands[root].at >= 0)
      mode.keeps[root] = true;
  }
}

}  // namespace

// Which of what results lie in stays for backward, because others read it there.
void Outline::add_kept(StepClass& of, const Mode& plain) {
  const Step& step = this->step(of);
  const CallPiece& piece = *plain.piece;
  const size_t operands = step.operands.size();
  const std::vector<size_t> roots = roots_of(step, piece);
  std::set<size_t> open, kept;
  for (size_t root : roots) {
    const bool stays = root < operands ? piece.reads[root] || step.operands[root].at < 0
                                       : piece.roots[root - operands].kept;
    (stays ? kept : open).insert(root);
  }
  const std::vector<size_t> choices = choices_of(open);
  for (size_t choice = 0; choice < size_t{1} << choices.size(); ++choice) {
    Mode mode = plain;
    std::set<size_t> stays = kept;
    for (size_t k = 0; k < choices.size(); ++k)
      if (choice >> k & 1u) stays.insert(choices[k]);
    mode.bytes = piece.kept;
    hold(mode, stays, step);
    for (size_t k = 0; k < roots.size(); ++k)
      mode.results[k].kept = stays.contains(roots[k]) || choices.size() < open.size();
    of.modes.push_back(std::move(mode));
  }
}

// Of a block that runs again stays what later blocks read; what its own backward needs is made
// again, by calls that need their operands then.
void Outline::add_again(StepClass& of, const Mode& plain) {
  const Step& step = this->step(of);
  const CallPiece& piece = *plain.piece;
  const std::vector<size_t> roots = roots_of(step, piece);
  std::set<size_t> open;
  for (size_t k = 0; k < roots.size(); ++k)
    for (int number : of.results[k])
      if (std::ranges::any_of(objects_[at(number)].readers,
                              [](const Reader& reader) { return !reader.inside; }))
        open.insert(roots[k]);
  const std::vector<size_t> choices = choices_of(open);
  const bool must = piece.kept > 0 || std::ranges::any_of(piece.roots, &CallPiece::Root::kept);
  for (int runs = must ? 1 : 0; runs < 2; ++runs)
    for (size_t choice = 0; choice < size_t{1} << choices.size(); ++choice) {
      Mode mode = plain;
      mode.again = true;
      mode.runs = runs == 1;
      if (mode.runs) mode.seconds += space_.problem().settings.micro_batches * piece.forward.all();
      std::set<size_t> stays;
      for (size_t k = 0; k < choices.size(); ++k)
        if (choice >> k & 1u) stays.insert(choices[k]);
      hold(mode, stays, step);
      for (size_t k = 0; k < roots.size(); ++k)
        mode.results[k] = {mode.results[k].made, mode.results[k].contiguous,
                           stays.contains(roots[k]) || choices.size() < open.size(), true,
                           mode.runs};
      of.modes.push_back(std::move(mode));
    }
}

}  // namespace nns::solve
