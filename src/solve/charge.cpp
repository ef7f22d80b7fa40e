// What a statement charges for values: conversions and sums of gradients, paid once for all
// readers.
#include <algorithm>

#include "solve/statement.h"

namespace nns::solve {

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

}  // namespace

void Statement::cost(const Sum& sum, double seconds) {
  for (const Term& term : sum) program_.costs[at(term.column)] += term.value * seconds;
}

Statement::Sum Statement::any(const std::vector<Part>& parts, const Sum* most) {
  if (parts.empty()) return {};
  if (parts.size() == 1 && parts[0].times == 1) return parts[0].sum;
  const Sum out{{program_.column(0), 1}};
  Sum all;
  for (const Part& part : parts) {
    program_.row(0, plus(out, times(part.sum, -1)), LinearProgram::kInfinite);
    all = plus(std::move(all), times(part.sum, part.times));
  }
  if (most != nullptr) {
    program_.row(-LinearProgram::kInfinite, plus(out, times(all, -1)), 0);
    program_.row(-LinearProgram::kInfinite, plus(out, times(*most, -1)), 0);
  }
  return out;
}

std::vector<Statement::Part> Statement::parts_of(const std::vector<Flow>& flows,
                                                 const std::function<bool(const Flow&)>& wanted) {
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
      bytes_ = plus(std::move(bytes_), times(any(parts_of(flows, kept)),
                                             object.count * static_cast<double>(piece->bytes)));
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
    contributions = plus(std::move(contributions), first);
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
    program_.row(-LinearProgram::kInfinite, plus(spared, {{flow.column, -1}}), 0);
    if (ordered) program_.row(-LinearProgram::kInfinite, plus(spared, times(later, -1)), 0);
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

}  // namespace nns::solve
