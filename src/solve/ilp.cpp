#include "solve/ilp.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace nns::solve {
namespace {

using Term = LinearProgram::Term;
using Sum = std::vector<Term>;

size_t at(int id) {
  return static_cast<size_t>(id);
}

Sum times(const Sum& sum, double factor) {
  Sum out = sum;
  for (Term& term : out) term.value *= factor;
  return out;
}

Sum operator+(Sum a, const Sum& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Statement {
 public:
  // `elastic`: the limit may be passed at a high price, so that there is always a solution.
  Statement(const Outline& outline, bool elastic);

  const LinearProgram& program() const { return program_; }
  double seconds(double cost) const { return constant_ + cost * scale_; }
  std::vector<uint8_t> candidates(const std::vector<double>& values) const;

 private:
  // What a reader wants of its operand, and how often.
  struct Demand {
    std::map<Want, Sum> wants;
  };
  // Of one object, from a variant to a reader that wants it so.
  struct Flow {
    const Reader* reader = nullptr;
    const Want* want = nullptr;
    const Variant* variant = nullptr;
    int column = 0;
  };
  // Whether one of these is so, each of a reader.
  struct Part {
    Sum sum;
    int times = 1;
  };

  void add_steps();
  void add_values();
  void make_values();
  Demand demand_of(const StepClass& of, int operand) const;
  void add_flows(size_t number);
  void take_values();
  void charge(size_t number);
  void charge_layout(const Object& object, const std::vector<Flow>& flows, Code made);
  void spare(const Object& object, const std::vector<Flow>& flows, Code made);
  void add_homes(size_t number);
  void add_limit(bool elastic);
  void add_segments();
  void scale();

  void cost(const Sum& sum, double seconds) {
    for (const Term& term : sum) program_.costs[at(term.column)] += term.value * seconds;
  }
  Sum any(const std::vector<Part>& parts, const Sum* most = nullptr);
  template <class F>
  std::vector<Part> parts_of(const std::vector<Flow>& flows, F wanted) const;

  const Outline& outline_;
  const Space& space_;
  const Question& question_;
  const int micro_batches_;
  LinearProgram program_;
  double constant_ = 0, scale_ = 1;
  std::vector<std::vector<int>> modes_, variants_;  // columns, by class and by object
  std::vector<std::vector<Demand>> demands_;        // by class and operand
  std::vector<std::vector<Flow>> flows_;            // by object
  Sum bytes_;
};

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
      for (const auto& [want, of] : demand.wants) program_.row(0, got[&want] + times(of, -1), 0);
}

// A sum that is one where a part is, in integers; `most` is no less than it.
Sum Statement::any(const std::vector<Part>& parts, const Sum* most) {
  if (parts.empty()) return {};
  if (parts.size() == 1 && parts[0].times == 1) return parts[0].sum;
  const Sum out{{program_.column(0), 1}};
  Sum all;
  for (const Part& part : parts) {
    program_.row(0, out + times(part.sum, -1), LinearProgram::kInfinite);
    all = std::move(all) + times(part.sum, part.times);
  }
  if (most != nullptr) {
    program_.row(-LinearProgram::kInfinite, out + times(all, -1), 0);
    program_.row(-LinearProgram::kInfinite, out + times(*most, -1), 0);
  }
  return out;
}

template <class F>
std::vector<Statement::Part> Statement::parts_of(const std::vector<Flow>& flows, F wanted) const {
  std::vector<Part> parts;
  const Reader* last = nullptr;
  for (const Flow& flow : flows) {
    if (!wanted(flow)) continue;
    if (flow.reader != last) parts.push_back({{}, flow.reader->times});
    last = flow.reader;
    parts.back().sum.push_back({flow.column, 1});
  }
  return parts;
}

void Statement::charge(size_t number) {
  const Object& object = outline_.objects()[number];
  std::map<Code, std::vector<Flow>> by_made;
  for (const Flow& flow : flows_[number]) by_made[flow.variant->made].push_back(flow);
  for (const auto& [made, flows] : by_made) charge_layout(object, flows, made);
  if (!question_.classes && outline_.decides(object) && !object.single) add_homes(number);
}

// What is paid for a value that was made in a layout, or a weight that rests in it.
void Statement::charge_layout(const Object& object, const std::vector<Flow>& flows, Code made) {
  const Live& live = object.live;
  const bool leaf = live.leaf >= 0;
  const double all = object.count * static_cast<double>(micro_batches_);
  const Space::Rest rest = leaf ? space_.rest(live.leaf, made, question_.zero) : Space::Rest{};
  const bool alone = std::ranges::all_of(object.readers, &Reader::inside);
  std::set<Code> codes;
  for (const Flow& flow : flows)
    if (!flow.want->free) codes.insert(flow.want->code);
  std::vector<Part> given, gathered;
  Sum contributions;
  for (Code code : codes) {
    const ConversionPiece* piece = outline_.conversion(object, made, code);
    const auto here = [&](const Flow& f) { return !f.want->free && f.want->code == code; };
    const auto gives = [&](const Flow& f) { return here(f) && f.want->gradients > 0; };
    if (piece == nullptr || piece->none || piece->view)
      for (Part& part : parts_of(flows, [&](const Flow& f) { return here(f) && f.want->read; }))
        gathered.push_back(std::move(part));
    if (piece == nullptr || piece->none) {
      for (Part& part : parts_of(flows, gives)) given.push_back(std::move(part));
      for (const Flow& flow : flows) {
        if (!here(flow)) continue;
        contributions.push_back({flow.column, 1.0 * flow.reader->times * flow.want->gradients});
        if (piece != nullptr)
          cost({{flow.column, -1.0 * flow.reader->times}}, all * flow.want->spared_sum);
      }
      continue;
    }
    cost(any(parts_of(flows, here)), all * piece->forward.all());
    if (alone)
      cost(any(parts_of(flows, [&](const Flow& f) { return here(f) && f.want->runs; })),
           all * piece->forward.all());
    if (!piece->view) {
      const auto kept = [&](const Flow& f) { return here(f) && f.want->kept; };
      bytes_ = std::move(bytes_) +
               times(any(parts_of(flows, kept)), object.count * static_cast<double>(piece->bytes));
    }
    if (std::ranges::none_of(flows, gives)) continue;
    // The first contribution comes back, further ones are added to it.
    const double sum = space_.sum(live.type, code);
    Sum most;
    for (const Flow& flow : flows)
      if (flow.reader == flows[0].reader) most.push_back({flow.column, 1});
    const Sum first = any(parts_of(flows, gives), &most);
    cost(first, all * (piece->backward.all() - sum));
    for (const Flow& flow : flows)
      if (gives(flow))
        cost({{flow.column, 1.0 * flow.reader->times * flow.want->gradients}}, all * sum);
    given.push_back({first, 1});
    contributions = std::move(contributions) + first;
  }
  if (rest.again > 0) cost(any(gathered), all * rest.again);
  if (given.empty()) return;
  if (leaf && !rest.joined) {
    cost(contributions, all * rest.gradient);
    return;
  }
  // All contributions but the first one are sums.
  Sum most;
  const Reader* sure = nullptr;  // one that gives a gradient in any case
  for (const Reader& reader : object.readers)
    if (std::ranges::all_of(flows, [&](const Flow& f) {
          return f.reader != &reader || (!f.want->free && f.want->gradients > 0);
        }))
      sure = &reader;
  for (const Flow& flow : flows)
    if (flow.reader == (sure != nullptr ? sure : flows[0].reader)) most.push_back({flow.column, 1});
  const Sum first = sure != nullptr ? most : any(given, &most);
  const double sum = space_.sum(live.type, made);
  cost(contributions, all * sum);
  cost(first, all * ((leaf ? rest.gradient : 0) - sum));
  if (!leaf) spare(object, flows, made);
}

// A gradient that a norm gives takes in the sum with the next one.
void Statement::spare(const Object& object, const std::vector<Flow>& flows, Code made) {
  const double all = object.count * static_cast<double>(micro_batches_);
  const bool ordered =
      std::ranges::all_of(object.readers, [](const Reader& r) { return r.times == 1; });
  for (const Flow& flow : flows) {
    if (flow.want->gradients == 0 || flow.want->spared_gradient <= 0) continue;
    const ConversionPiece* piece = outline_.conversion(object, made, flow.want->code);
    const bool everywhere = piece == nullptr || piece->none || piece->same;
    Sum later;
    for (const Flow& other : flows)
      if (other.want->gradients > 0 && (other.reader > flow.reader || !ordered) &&
          (everywhere || other.want->code == flow.want->code))
        later.push_back({other.column, 1.0 * other.reader->times});
    if (later.empty()) continue;
    const Sum spared{{program_.column(0), 1}};
    program_.row(-LinearProgram::kInfinite, spared + Sum{{flow.column, -1}}, 0);
    if (ordered) program_.row(-LinearProgram::kInfinite, spared + times(later, -1), 0);
    cost(spared, -all * flow.reader->times * flow.want->spared_gradient);
  }
}

// A weight that all readers want in one layout rests in it.
void Statement::add_homes(size_t number) {
  const Object& object = outline_.objects()[number];
  double readers = 0;
  for (const Reader& reader : object.readers) readers += reader.times;
  for (size_t v = 0; v < object.variants.size(); ++v) {
    const Code home = object.variants[v].made;
    if (home == kWhole) continue;
    Sum wanted{{variants_[number][v], -1}};
    for (const Flow& flow : flows_[number])
      if (flow.want->code == home) wanted.push_back({flow.column, 1.0 * flow.reader->times});
    program_.row(-LinearProgram::kInfinite, wanted, readers - 1);
  }
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

}  // namespace

std::optional<Optimum> optimum(const Space& space, const Question& question) {
  NNS_CHECK(!question.classes, "a plan of classes");
  const Outline outline(space, question);
  const Statement statement(outline, false);
  const auto answer = solve_linear(statement.program(), false);
  if (!answer || answer->status == LinearAnswer::Status::stopped) return std::nullopt;
  if (answer->status == LinearAnswer::Status::infeasible) return Optimum{};
  return Optimum{true, statement.seconds(answer->cost), statement.candidates(answer->values)};
}

std::optional<double> least_seconds(const Space& space, const Question& question) {
  const Outline outline(space, question);
  const Statement statement(outline, true);
  const auto answer = solve_linear(statement.program(), true);
  if (!answer || answer->status != LinearAnswer::Status::solved) return std::nullopt;
  return statement.seconds(bound_by(statement.program(), answer->prices));
}

}  // namespace nns::solve
