#include "solve/outline.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace nns::solve {

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

}  // namespace

Outline::Outline(const Space& space, const Question& question)
    : space_(space), question_(question) {
  find_classes();
  find_objects();
  find_homes();
  // What a step makes of strides depends on those that it is given.
  for (bool any = true; any;) {
    any = false;
    for (StepClass& of : classes_) any = find_modes(of) || any;
  }
}

const Step& Outline::step(const StepClass& of) const {
  return space_.steps()[at(of.step)];
}

void Outline::find_classes() {
  std::map<std::tuple<int, bool, size_t>, int> known;
  std::map<std::pair<int, bool>, int> segments;
  const auto& begins = space_.segments();
  for (size_t s = 0; s < begins.size(); ++s) {
    const bool listed = space_.listed()[s];
    const int id = question_.classes ? space_.segment_ids()[s] : static_cast<int>(s);
    int segment = -1;
    if (question_.recompute && question_.memory && listed)
      segment = segments.try_emplace({id, listed}, static_cast<int>(segments.size())).first->second;
    for (size_t i = begins[s]; i < space_.segment_end(s); ++i) {
      const auto [entry, fresh] =
          known.try_emplace({id, listed, i - begins[s]}, static_cast<int>(classes_.size()));
      if (fresh) {
        StepClass of;
        of.step = space_.sequence()[i];
        of.place = i;
        of.count = 0;
        of.segment = step(of).kind < 0 ? -1 : segment;
        of.operands.resize(step(of).operands.size() + step(of).updates.size());
        of.homes.resize(step(of).updates.size());
        of.results.resize(step(of).results.size());
        classes_.push_back(std::move(of));
      }
      ++classes_[at(entry->second)].count;
      class_of_.push_back(entry->second);
      segment_of_.push_back(static_cast<int>(s));
    }
  }
  segments_ = static_cast<int>(segments.size());
}

void Outline::find_objects() {
  struct Value {
    Live live;
    bool single = false;
    int place = -1, result = -1;             // where it is made
    std::vector<std::pair<int, int>> uses;   // places and operands
    std::vector<std::pair<int, int>> homes;  // places and updates
  };
  std::vector<Value> values;
  std::vector<int> alive;
  for (size_t i = 0; i < space_.sequence().size(); ++i) {
    const int place = static_cast<int>(i);
    const Step& step = space_.steps()[at(space_.sequence()[i])];
    const auto add = [&](Value value) {
      values.push_back(std::move(value));
      return static_cast<int>(values.size()) - 1;
    };
    for (const Live& live : step.enter) alive.push_back(add({live, false, -1, -1, {}, {}}));
    for (size_t k = 0; k < step.operands.size(); ++k) {
      const Step::Operand& o = step.operands[k];
      const int value = o.at >= 0 ? alive[at(o.at)] : add({step.lives[k], true, -1, -1, {}, {}});
      values[at(value)].uses.emplace_back(place, static_cast<int>(k));
    }
    const size_t before = alive.size();
    for (size_t k = 0; k < step.results.size(); ++k)
      alive.push_back(add({step.results[k], false, place, static_cast<int>(k), {}, {}}));
    for (size_t u = 0; u < step.updates.size(); ++u) {
      const Step::Update& update = step.updates[u];
      values[at(alive[before + at(update.result)])].uses.emplace_back(
          place, static_cast<int>(step.operands.size() + u));
      if (update.at >= 0)
        values[at(alive[at(update.at)])].homes.emplace_back(place, static_cast<int>(u));
    }
    std::vector<int> next;
    for (int k : step.survive) next.push_back(alive[at(k)]);
    alive = std::move(next);
  }

  std::map<std::pair<std::tuple<int, bool, int, int>, std::vector<Reader>>, int> known;
  for (const Value& value : values) {
    Object object{value.live, value.single, -1, -1, {}, 0, {}};
    object.maker = value.place < 0 ? -1 : class_of_[at(value.place)];
    object.result = value.result;
    for (const auto& [place, operand] : value.uses) {
      const Reader reader{
          class_of_[at(place)], operand, 1,
          value.place >= 0 && segment_of_[at(value.place)] == segment_of_[at(place)]};
      const auto found = std::ranges::find_if(object.readers, [&](const Reader& r) {
        return r.of == reader.of && r.operand == operand && r.inside == reader.inside;
      });
      if (found == object.readers.end())
        object.readers.push_back(reader);
      else
        ++found->times;
    }
    const auto [entry, fresh] = known.try_emplace(
        {{value.live.leaf, value.single, object.maker, object.result}, object.readers},
        static_cast<int>(objects_.size()));
    const int number = entry->second;
    if (fresh) objects_.push_back(object);
    ++objects_[at(number)].count;
    for (const auto& [place, operand] : value.uses)
      ++classes_[at(class_of_[at(place)])].operands[at(operand)][number];
    for (const auto& [place, update] : value.homes)
      ++classes_[at(class_of_[at(place)])].homes[at(update)][number];
    if (value.place >= 0) classes_[at(object.maker)].results[at(value.result)].insert(number);
  }
}

bool Outline::decides(const Object& object) const {
  if (object.live.leaf < 0) return false;
  const Leaf& leaf = space_.leaves()[at(object.live.leaf)];
  return leaf.rests && (object.single || question_.memory || leaf.trained ||
                        (leaf.weight && question_.zero > plan::Zero::none));
}

// A weight rests as all its readers want it, or whole.
void Outline::find_homes() {
  for (Object& object : objects_) {
    if (object.live.leaf < 0) continue;
    std::set<Code> homes{kWhole};
    if (decides(object))
      for (const Reader& reader : object.readers) {
        const Step& step = this->step(classes_[at(reader.of)]);
        if (step.kind < 0) continue;
        for (const Candidate& c : space_.kinds()[at(step.kind)].candidates)
          if (const Code code = c.inputs[at(reader.operand)]; code != kAddend) homes.insert(code);
      }
    for (Code home : homes) object.variants.push_back({home});
  }
}

const ConversionPiece* Outline::conversion(const Object& object, Code made, Code code) const {
  const Live& live = object.live;
  if (live.leaf >= 0 && space_.leaves()[at(live.leaf)].rests && code == made) return nullptr;
  return &space_.conversion(live.type, pieces(made), code, live.requires_grad);
}

// Whether elements do not lie in row-major order where a value is read.
bool Outline::strided(const Object& object, const Variant& variant, Code code) const {
  if (object.single) return !space_.leaves()[at(object.live.leaf)].rests && code >= kCut;
  const ConversionPiece* piece = conversion(object, variant.made, code);
  return piece == nullptr || piece->none ? !variant.contiguous : piece->view;
}

bool Outline::serves(const Object& object, const Reader& reader, const Variant& variant,
                     const Want& want) const {
  if (decides(object)) {
    if (variant.made != kWhole && want.code != variant.made) return false;
    if (object.single && variant.made == kWhole && want.code != kWhole && want.code != kAddend)
      return false;
  }
  if (want.strided >= 0 && strided(object, variant, want.code) != (want.strided == 1)) return false;
  if (object.live.leaf >= 0) return true;
  if (reader.inside && !want.update && variant.again != want.again) return false;
  if (want.needed && !(reader.inside ? variant.needed : variant.kept)) return false;
  if (!want.kept || variant.kept) return true;
  const ConversionPiece* piece = conversion(object, variant.made, want.code);
  return !piece->none && !piece->view;
}

Want Outline::want(const StepClass& of, const Mode& mode, int operand) const {
  const Step& step = this->step(of);
  const bool memory = question_.memory.has_value();
  const Candidate* cut =
      step.kind < 0 ? nullptr : &space_.kinds()[at(step.kind)].candidates[mode.candidate];
  Want want;
  want.again = mode.again;
  const auto i = at(operand);
  if (i >= step.operands.size()) {  // what a buffer becomes
    const Step::Update& update = step.updates[i - step.operands.size()];
    if (update.operand >= 0) want.code = pieces(cut->inputs[at(update.operand)]);
    want.read = want.update = true;
    want.kept = memory && !question_.recompute;
    return want;
  }
  if (cut == nullptr) {
    want.free = step.kind == kUnread;
    want.read = step.kind == kResults;
    want.kept = memory && want.read;
    want.gradients = step.kind == kResults && step.loss[i] ? 1 : 0;
    return want;
  }
  want.code = cut->inputs[i];
  if (i < 32 && mode.cares >> i & 1u) want.strided = mode.strided >> i & 1u;
  want.gradients = mode.piece->gradients[i];
  want.read = mode.piece->reads[i];
  if (memory) {
    want.kept = mode.keeps[i] || (want.read && !mode.again);
    want.needed = mode.again && (mode.runs || want.read);
    want.runs = mode.runs;
  }
  if (i == 0 && step.operands[i].at >= 0) {
    want.spared_sum = step.of_sum ? mode.piece->spared_sum : 0;
    want.spared_gradient = step.lives[i].leaf < 0 ? mode.piece->spared_gradient : 0;
  }
  return want;
}

}  // namespace nns::solve
