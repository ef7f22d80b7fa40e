#include "solve/statement.h"

#include <algorithm>

#include "base/error.h"

namespace nns::solve {

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

}  // namespace

Statement::Statement(const Outline& outline, bool elastic)
    : outline_(outline),
      space_(outline.space()),
      question_(outline.question()),
      micro_batches_(space_.problem().settings.micro_batches) {
  constant_ = space_.unread(question_.zero).seconds;
  add_steps();
  add_values();
  make_values();
  for (size_t o = 0; o < outline_.objects().size(); ++o) add_flows(o);
  take_values();
  for (size_t o = 0; o < outline_.objects().size(); ++o) charge(o);
  add_segments();
  if (question_.memory) add_limit(elastic);
  scale();
}

void Statement::add_steps() {
  for (const StepClass& of : outline_.classes()) {
    std::vector<int>& columns = modes_.emplace_back();
    Sum one;
    for (const Mode& mode : of.modes) {
      columns.push_back(program_.column(of.count * mode.seconds, 1, true));
      one.push_back({columns.back(), 1});
      bytes_.push_back({columns.back(), of.count * static_cast<double>(mode.bytes)});
    }
    program_.row(1, one, 1);
  }
}

void Statement::add_values() {
  for (const Object& object : outline_.objects()) {
    std::vector<int>& columns = variants_.emplace_back();
    Sum one;
    for (const Variant& variant : object.variants) {
      Space::Rest rest;
      if (outline_.decides(object))
        rest = space_.rest(object.live.leaf, variant.made, question_.zero);
      columns.push_back(program_.column(
          object.count * (rest.seconds + micro_batches_ * rest.forward), 1, object.maker < 0));
      one.push_back({columns.back(), 1});
      bytes_.push_back({columns.back(), object.count * static_cast<double>(rest.bytes)});
    }
    program_.row(1, one, 1);
  }
}

// Values are as the calls that make them make them.
void Statement::make_values() {
  for (size_t c = 0; c < outline_.classes().size(); ++c) {
    const StepClass& of = outline_.classes()[c];
    for (size_t k = 0; k < of.results.size(); ++k) {
      std::map<Variant, Sum> sums;
      for (size_t p = 0; p < of.modes.size(); ++p)
        sums[of.modes[p].results[k]].push_back({modes_[c][p], -1.0 * of.count});
      for (int number : of.results[k]) {
        const Object& object = outline_.objects()[at(number)];
        for (size_t v = 0; v < object.variants.size(); ++v)
          sums[object.variants[v]].push_back({variants_[at(number)][v], 1.0 * object.count});
      }
      for (const auto& [variant, sum] : sums) program_.row(0, sum, 0);
    }
  }
}

Statement::Demand Statement::demand_of(const StepClass& of, int operand) const {
  const auto c = static_cast<size_t>(&of - outline_.classes().data());
  const Step& step = outline_.step(of);
  const auto update = at(operand) - step.operands.size();
  Demand demand;
  if (at(operand) >= step.operands.size() && !of.homes[update].empty()) {
    // As the buffer rests, which other readers of it say.
    for (const auto& [number, count] : of.homes[update]) {
      const Object& buffer = outline_.objects()[at(number)];
      for (size_t v = 0; v < buffer.variants.size(); ++v) {
        Want want = outline_.want(of, of.modes[0], operand);
        want.code = buffer.variants[v].made == kPartial ? kWhole : buffer.variants[v].made;
        demand.wants[want].push_back({variants_[at(number)][v], 1.0 * count});
      }
    }
    return demand;
  }
  for (size_t p = 0; p < of.modes.size(); ++p)
    demand.wants[outline_.want(of, of.modes[p], operand)].push_back({modes_[c][p], 1.0 * of.count});
  return demand;
}

// Each value goes to each of its readers in one way.
void Statement::add_flows(size_t number) {
  if (demands_.empty())
    for (const StepClass& of : outline_.classes()) {
      std::vector<Demand>& demands = demands_.emplace_back();
      for (size_t i = 0; i < of.operands.size(); ++i)
        demands.push_back(demand_of(of, static_cast<int>(i)));
    }
  const Object& object = outline_.objects()[number];
  std::vector<Flow>& flows = flows_.emplace_back();
  for (const Reader& reader : object.readers)
    for (size_t v = 0; v < object.variants.size(); ++v) {
      Sum sum{{variants_[number][v], -1}};
      for (const auto& [want, of] : demands_[at(reader.of)][at(reader.operand)].wants) {
        if (!outline_.serves(object, reader, object.variants[v], want)) continue;
        flows.push_back({&reader, &want, &object.variants[v], program_.column(0)});
        sum.push_back({flows.back().column, 1});
      }
      program_.row(0, sum, 0);
    }
}

// Readers get what they want of the values that they read.
void Statement::take_values() {
  std::map<const Want*, Sum> got;
  for (size_t o = 0; o < flows_.size(); ++o)
    for (const Flow& flow : flows_[o])
      got[flow.want].push_back(
          {flow.column, 1.0 * outline_.objects()[o].count * flow.reader->times});
  for (const auto& demands : demands_)
    for (const Demand& demand : demands)
      for (const auto& [want, of] : demand.wants)
        program_.row(0, plus(got[&want], times(of, -1)), 0);
}

// Steps of a block run again together.
void Statement::add_segments() {
  std::vector<int> part;
  for (int g = 0; g < outline_.segments(); ++g) part.push_back(program_.column(0, 1, true));
  for (size_t c = 0; c < outline_.classes().size(); ++c) {
    const StepClass& of = outline_.classes()[c];
    if (of.segment < 0) continue;
    Sum sum{{part[at(of.segment)], -1}};
    for (size_t p = 0; p < of.modes.size(); ++p)
      if (of.modes[p].again) sum.push_back({modes_[c][p], 1});
    program_.row(0, sum, 0);
  }
}

void Statement::add_limit(bool elastic) {
  const auto limit = static_cast<double>(std::max<int64_t>(1, *question_.memory));
  const auto left = static_cast<double>(*question_.memory - space_.unread(question_.zero).bytes);
  Sum sum = times(bytes_, 1 / limit);
  if (elastic) {
    double most = 1;  // of all that can be held
    for (const Term& term : sum) most += std::max(0.0, term.value);
    double seconds = 0;
    for (double cost : program_.costs) seconds += std::max(0.0, cost);
    sum.push_back({program_.column(10 * seconds, most), -1});
  }
  program_.row(-LinearProgram::kInfinite, sum, left / limit);
}

// Costs of some thousands, whatever seconds are.
void Statement::scale() {
  double least = 0;
  for (size_t c = 0; c < outline_.classes().size(); ++c) {
    double fastest = LinearProgram::kInfinite;
    for (int column : modes_[c]) fastest = std::min(fastest, program_.costs[at(column)]);
    least += fastest;
  }
  if (least <= 0) least = 1e-6;
  scale_ = least / 1000;
  for (double& cost : program_.costs) cost /= scale_;
}

std::vector<uint8_t> Statement::candidates(const std::vector<double>& values) const {
  std::vector<uint8_t> out;
  for (size_t c = 0; c < outline_.classes().size(); ++c)
    for (size_t p = 0; p < modes_[c].size(); ++p)
      if (values[at(modes_[c][p])] > 0.5)
        out.push_back(static_cast<uint8_t>(outline_.classes()[c].modes[p].candidate));
  return out;
}

}  // namespace nns::solve
