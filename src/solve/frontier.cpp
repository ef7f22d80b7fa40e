#include "solve/frontier.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"

namespace nns::solve {
namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

Entry fresh() {
  Entry entry;
  std::memset(entry.roots, kNone, sizeof entry.roots);
  return entry;
}

}  // namespace

std::string Frontier::key() const {
  std::string out(entries.size() * sizeof(Entry) + memory.size() * sizeof(Memory), '\0');
  if (!entries.empty()) std::memcpy(out.data(), entries.data(), entries.size() * sizeof(Entry));
  if (!memory.empty())
    std::memcpy(out.data() + entries.size() * sizeof(Entry), memory.data(),
                memory.size() * sizeof(Memory));
  return out;
}

Frontier Frontier::of(const std::string& key, size_t entries) {
  Frontier out;
  const size_t bytes = entries * sizeof(Entry);
  out.entries.resize(entries);
  out.memory.resize((key.size() - bytes) / sizeof(Memory));
  if (entries > 0) std::memcpy(out.entries.data(), key.data(), bytes);
  if (!out.memory.empty()) std::memcpy(out.memory.data(), key.data() + bytes, key.size() - bytes);
  return out;
}

struct Mover::Work {
  Frontier& frontier;
  Added& added;
  double micro = 0, forward = 0, sent = 0;  // seconds of a micro-batch, as in Added

  uint8_t take(int64_t bytes, bool kept) {
    frontier.memory.push_back({bytes, kept ? 1 : 0});
    if (kept) added.saved += bytes;
    NNS_CHECK(frontier.memory.size() < kHeld, "more than 253 pieces of memory are alive");
    return static_cast<uint8_t>(frontier.memory.size() - 1);
  }
  // `communication`: of both together.
  void add(double in_forward, double in_backward, double communication) {
    micro += in_forward + in_backward;
    forward += in_forward;
    sent += communication;
  }
  // What is charged for a leaf once it rests somewhere.
  void settle(const Space::Rest& rest) {
    added.resting += rest.bytes;
    added.seconds += rest.seconds;
    added.update += rest.update;
    add(rest.forward, 0, rest.forward);
    added.gathers += rest.forward;
  }
  void finish(int micro_batches) {
    added.seconds += micro_batches * micro;
    added.micro += micro;
    added.forward += forward;
    added.sent += sent;
  }
  void keep(uint8_t root) {
    if (root >= kHeld || frontier.memory[root].kept) return;
    frontier.memory[root].kept = 1;
    added.saved += frontier.memory[root].bytes;
  }
};

// Reads a value in a layout, gives so many contributions to its gradient; `read`: backward reads it
// too.
void Mover::use(Work& work, Entry& entry, const Live& live, Code code, int gradients, bool read,
                double spared) const {
  const bool weight = live.leaf >= 0;
  const bool direct = weight && space_.leaves()[at(live.leaf)].rests ? code == entry.made : false;
  ConversionPiece as_it_is;
  as_it_is.none = true;
  const ConversionPiece& piece =
      direct ? as_it_is
             : space_.conversion(live.type, pieces(entry.made), code, live.requires_grad);
  // A gradient joins one that is there.
  const auto summed = [&](Code in) {
    const double spared_here = space_.spared(std::exchange(entry.norms[in], uint8_t{0}));
    if (entry.linked != kNone && (in == entry.made || in == entry.linked))
      entry.norms[entry.made] = entry.norms[std::exchange(entry.linked, kNone)] = 0;
    return space_.sum(live.type, in) - spared_here;
  };
  const auto give = [&](Code in, uint8_t norm) {
    if (in == entry.made || in == entry.linked) entry.linked = kNone;
    entry.norms[in] = norm;
  };
  // One more contribution to the value as it was made, or to the weight.
  const auto contribute = [&] {
    if (weight) {
      const Space::Rest& rest = space_.rest(live.leaf, entry.made, zero_);
      if (!rest.joined || !entry.has_gradient) work.add(0, rest.gradient, rest.scatter);
      if (!rest.joined) return;
    }
    if (entry.has_gradient) work.add(0, summed(entry.made), 0);
    entry.has_gradient = 1;
  };
  if (read && (piece.none || piece.view)) gather_again(work, entry, live);
  if (piece.none) {
    for (int i = 0; i < gradients; ++i) contribute();
    if (gradients > 0 && !weight) give(entry.made, space_.spared_id(spared));
    if (read && memory_) work.keep(entry.root);
    return;
  }
  const auto bit = static_cast<uint16_t>(1u << code);
  if (!(entry.exists & bit)) {
    work.add(piece.forward.all(), 0, piece.forward.communication);
    // What costs nothing may as well be made again.
    if (memory_ || piece.forward.all() > 0) entry.exists |= bit;
  }
  bool first = false;
  for (int i = 0; i < gradients; ++i) {
    if (entry.gradients & bit) {
      work.add(0, summed(code), 0);
      continue;
    }
    entry.gradients |= bit;
    work.add(0, piece.backward.all(), piece.backward.communication);
    contribute();
    first = true;
  }
  if (gradients > 0 && !weight) {
    const uint8_t norm = space_.spared_id(spared);
    give(code, norm);
    // The value as it was made gets this gradient, or one that the conversion makes of it.
    if (first) give(entry.made, piece.same && gradients == 1 ? norm : uint8_t{0});
    if (first && entry.norms[entry.made] != 0) entry.linked = code;
  }
  if (!memory_) return;
  if (!piece.view && entry.roots[code] == kNone) entry.roots[code] = work.take(piece.bytes, false);
  if (read) work.keep(piece.view ? entry.root : entry.roots[code]);
}

// What backward reads of a weight in shards is gathered there too, once.
void Mover::gather_again(Work& work, Entry& entry, const Live& live) const {
  if (live.leaf < 0 || entry.again) return;
  const double seconds = space_.rest(live.leaf, entry.made, zero_).again;
  entry.again = seconds > 0;
  work.add(0, seconds, seconds);
}

// Decides where a weight of several uses rests, or checks a further use; false where lowering would
// have it elsewhere.
bool Mover::settle(Work& work, Entry& entry, const Live& live, Code code, bool whole) const {
  if (!decides(live)) return true;
  if (entry.first == kNone) {
    entry.first = code;
    entry.made = whole || code == kAddend ? kWhole : code;
    entry.differs = code == kAddend;
    if (whole && (code == kWhole || code == kAddend)) return false;  // the other choice is the same
    work.settle(space_.rest(live.leaf, entry.made, zero_));
    return true;
  }
  if (code == entry.first) return true;
  entry.differs = 1;
  return entry.made == kWhole;
}

void Mover::read_alone(Work& work, int number, Code code, int gradients, bool read) const {
  const Leaf& leaf = space_.leaves()[at(number)];
  Entry entry = fresh();
  entry.made = leaf.rests && code != kAddend ? code : kWhole;
  work.settle(space_.rest(number, entry.made, zero_));
  use(work, entry, {leaf.type, leaf.requires_grad, 0, 1, number}, code, gradients, read);
}

// Whether it is to be decided where a value rests. Where one rests that is neither trained nor in
// shards is no matter of time: slices of it cost nothing.
bool Mover::decides(const Live& live) const {
  if (live.leaf < 0) return false;
  const Leaf& leaf = space_.leaves()[at(live.leaf)];
  return leaf.rests && (memory_ || leaf.trained || (leaf.weight && zero_ > plan::Zero::none));
}

uint32_t Mover::homes(int step) const {
  uint32_t n = 1;
  for (const Live& live : space_.steps()[at(step)].enter)
    if (decides(live)) n *= 2;
  return n;
}

bool Mover::move(int number, size_t candidate, uint32_t homes, Frontier& frontier,
                 Added& added) const {
  const Step& step = space_.steps()[at(number)];
  std::vector<Live> live;  // of the entries
  Work work{frontier, added};
  const size_t before = frontier.entries.size();
  for (size_t i = 0; i < step.enter.size(); ++i) frontier.entries.push_back(fresh());
  const bool results = step.kind == kResults, unread = step.kind == kUnread;
  const Candidate* cut =
      step.kind < 0 ? nullptr : &space_.kinds()[at(step.kind)].candidates[candidate];
  const auto code_at = [&](size_t i) { return cut == nullptr ? kWhole : cut->inputs[i]; };

  // Entries know their types from the list of live values that the caller keeps; here from
  // operands.
  uint32_t choice = homes;
  std::vector<bool> chosen(step.enter.size());
  for (size_t i = 0; i < step.enter.size(); ++i) {
    const Live& l = step.enter[i];
    if (!decides(l)) continue;
    chosen[i] = choice & 1u;
    choice >>= 1;
  }
  uint32_t strided = 0;
  bool direct_sum = false;  // operand 0 is read as it was made
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const Step::Operand& o = step.operands[i];
    const Live& l = step.lives[i];
    if (o.at < 0) {  // a slice of an input
      if (!space_.leaves()[at(o.leaf)].rests && code_at(i) >= kCut && i < 32) strided |= 1u << i;
      continue;
    }
    Entry& entry = frontier.entries[at(o.at)];
    const size_t place = at(o.at);
    const bool whole = place >= before && chosen[place - before];
    if (l.leaf >= 0 && !settle(work, entry, l, code_at(i), whole)) return false;
    if (cut == nullptr || i >= 32) continue;
    const Code code = cut->inputs[i];
    const bool direct = l.leaf >= 0 && space_.leaves()[at(l.leaf)].rests && code == entry.made;
    const ConversionPiece* piece =
        direct ? nullptr : &space_.conversion(l.type, pieces(entry.made), code, l.requires_grad);
    if (i == 0) direct_sum = step.of_sum && piece != nullptr && piece->none;
    const bool contiguous = piece == nullptr || piece->none ? entry.contiguous : !piece->view;
    if (!contiguous) strided |= 1u << i;
  }
  const CallPiece* piece = cut == nullptr ? nullptr : &space_.piece(number, candidate, strided);
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const Step::Operand& o = step.operands[i];
    const int gradients = piece != nullptr ? piece->gradients[i] : results && step.loss[i] ? 1 : 0;
    const bool read = piece != nullptr ? piece->reads[i] : results;
    if (o.at < 0)
      read_alone(work, o.leaf, code_at(i), gradients, read);
    else if (!unread)
      use(work, frontier.entries[at(o.at)], step.lives[i], code_at(i), gradients, read,
          piece != nullptr && i == 0 ? piece->spared_gradient : 0);
  }
  for (int place : step.last) {
    const Entry& entry = frontier.entries[at(place)];
    // Whole at rest though all uses want one other layout: lowering would lay it as they do.
    if (entry.first != kNone && !entry.differs && entry.made != entry.first) return false;
  }
  if (results) {
    work.finish(space_.problem().settings.micro_batches);
    frontier = {};
    return true;
  }
  if (piece != nullptr)
    work.add(piece->forward.all(), piece->backward.all(),
             piece->forward.communication + piece->backward.communication);
  if (direct_sum) work.add(-piece->spared_sum, 0, 0);
  if (memory_ && piece != nullptr) added.saved += piece->kept;
  std::vector<uint8_t> roots;
  if (memory_ && piece != nullptr)
    for (const CallPiece::Root& root : piece->roots)
      roots.push_back(work.take(root.bytes, root.kept));
  for (size_t k = 0; k < step.results.size(); ++k) {
    const CallPiece::Result& made = piece->results[at(step.result_of[k])];
    Entry entry = fresh();
    entry.made = cut->outputs[at(step.result_of[k])];
    entry.contiguous = made.contiguous;
    if (memory_ && made.root >= step.operands.size()) {
      entry.root = roots[made.root - step.operands.size()];
    } else if (memory_) {
      const Step::Operand& o = step.operands[made.root];
      if (o.at >= 0) {
        const Entry& of = frontier.entries[at(o.at)];
        const Code code = cut->inputs[made.root];
        entry.root = of.roots[code] != kNone ? of.roots[code] : of.root;
      }
    }
    frontier.entries.push_back(entry);
  }
  for (const Step::Update& update : step.updates) {
    Code home = kWhole;
    if (update.operand >= 0) home = pieces(cut->inputs[at(update.operand)]);
    if (update.at >= 0) home = pieces(frontier.entries[at(update.at)].made);
    Entry& entry =
        frontier.entries[frontier.entries.size() - step.results.size() + at(update.result)];
    use(work, entry, step.results[at(update.result)], home, 0, true);
  }
  work.finish(space_.problem().settings.micro_batches);

  std::vector<Entry> entries;
  std::vector<uint8_t> renamed(frontier.memory.size(), kNone);
  std::vector<Memory> memory;
  const auto rename = [&](uint8_t& root) {
    if (root >= kHeld) return;
    if (frontier.memory[root].kept) {
      root = kHeld;
      return;
    }
    if (renamed[root] == kNone) {
      renamed[root] = static_cast<uint8_t>(memory.size());
      memory.push_back(frontier.memory[root]);
    }
    root = renamed[root];
  };
  for (size_t i = 0; i < step.survive.size(); ++i) {
    Entry entry = frontier.entries[at(step.survive[i])];
    // Conversions that nobody wants any more are forgotten.
    entry.exists &= step.codes[i];
    entry.gradients &= step.codes[i];
    for (Code code = 0; code < kCodes; ++code)
      if (!(step.codes[i] >> code & 1u)) {
        entry.roots[code] = kNone;
        if (code != entry.made) entry.norms[code] = 0;
        if (code == entry.linked) entry.linked = kNone;
      }
    rename(entry.root);
    for (uint8_t& root : entry.roots) rename(root);
    entries.push_back(entry);
  }
  frontier.entries = std::move(entries);
  frontier.memory = std::move(memory);
  return true;
}

// Readers may have backward keep what they read: the value's memory, once for all layouts that lie
// in it, or that of a conversion. What `b` shares among values counts there for none of them.
int64_t Mover::excess_bytes(const Frontier& a, const Frontier& b,
                            const std::vector<Live>& live) const {
  std::vector<int> sharing(b.memory.size(), 0);
  for (const Entry& entry : b.entries) {
    std::array<uint8_t, kCodes + 1> roots;
    std::copy(entry.roots, entry.roots + kCodes, roots.begin());
    roots.back() = entry.root;
    std::sort(roots.begin(), roots.end());
    const auto end = std::unique(roots.begin(), roots.end());
    for (auto root = roots.begin(); root != end && *root < kHeld; ++root) ++sharing[*root];
  }
  const auto bytes_of = [](const Frontier& of, uint8_t root) {
    return root >= kHeld ? 0 : of.memory[root].bytes;
  };
  int64_t sum = 0;
  for (size_t i = 0; i < live.size(); ++i) {
    const Entry &x = a.entries[i], &y = b.entries[i];
    const Live& l = live[i];
    const auto counts = [&](uint8_t root) { return root < kHeld && sharing[root] == 1; };
    // What reading in a layout may keep; nothing: the memory of the value itself.
    const auto own = [&](const Entry& e, const Frontier& of, Code code) -> std::optional<int64_t> {
      if (e.first != kNone && code == e.made) return std::nullopt;
      const ConversionPiece& piece =
          space_.conversion(l.type, pieces(e.made), code, l.requires_grad);
      if (piece.none || piece.view) return std::nullopt;
      return e.roots[code] == kNone ? piece.bytes : bytes_of(of, e.roots[code]);
    };
    std::array<int64_t, kCodes + 1> more;
    int n = 0;
    bool any = false, all = true;  // that lie in the value's memory; … in both
    for (Code code = 0; code < kCodes; ++code) {
      if (!(l.codes >> code & 1u)) continue;
      const auto from_x = own(x, a, code), from_y = own(y, b, code);
      if (!from_x) {
        any = true;
        all = all && !from_y;
        continue;
      }
      const bool same = from_y && (y.roots[code] == kNone || counts(y.roots[code]));
      more[static_cast<size_t>(n++)] = std::max<int64_t>(0, *from_x - (same ? *from_y : 0));
    }
    if (any)
      more[static_cast<size_t>(n++)] = std::max<int64_t>(
          0, bytes_of(a, x.root) - (all && counts(y.root) ? bytes_of(b, y.root) : 0));
    std::sort(more.begin(), more.begin() + n, std::greater<>());
    const int readers = l.readers >= kManyReaders ? n : std::min(l.readers, n);
    for (int k = 0; k < readers; ++k) sum += more[static_cast<size_t>(k)];
  }
  return sum;
}

std::optional<Mover::Excess> Mover::excess(const Frontier& a, const Frontier& b,
                                           const std::vector<Live>& live, double seconds) const {
  const int micro_batches = space_.problem().settings.micro_batches;
  double most = 0;
  for (size_t i = 0; i < live.size(); ++i) {
    if (most * micro_batches > seconds) return std::nullopt;
    const Entry &x = a.entries[i], &y = b.entries[i];
    if (std::memcmp(&x, &y, sizeof x) == 0) continue;
    const Live& l = live[i];
    // A weight that rests whole whatever comes can be read in every way that one whole now can.
    const bool free = x.made == kWhole && y.made == kWhole && (x.differs || x.first == kWhole);
    for (Code code = 0; code < kCodes; ++code)
      if (x.norms[code] != y.norms[code]) most += space_.spared(y.norms[code]);
    if (x.again < y.again) most += space_.rest(l.leaf, x.made, zero_).again;
    if (x.contiguous < y.contiguous || (!free && (x.first != y.first || x.differs != y.differs ||
                                                  (x.first != kNone && x.made != y.made))))
      return std::nullopt;
    const bool weight = l.leaf >= 0;
    // A contribution to the gradient of the value as it was made.
    const auto sum = [&](const Entry& e) {
      if (!weight) return space_.sum(l.type, e.made);
      const Space::Rest& rest = space_.rest(l.leaf, e.made, zero_);
      return rest.joined ? space_.sum(l.type, e.made) : rest.gradient;
    };
    if (weight && x.has_gradient < y.has_gradient)
      most += space_.rest(l.leaf, x.made, zero_).gradient;
    // What readers in a layout cost, with and without a gradient that they give, of which all but
    // one contribution cost the same from everywhere.
    struct Cost {
      double forward = 0, all = 0;
    };
    const auto cost = [&](const Entry& e, Code code) -> Cost {
      const bool home = e.first != kNone && code == e.made;
      const ConversionPiece* piece =
          home ? nullptr : &space_.conversion(l.type, pieces(e.made), code, l.requires_grad);
      if (piece == nullptr || piece->none) return {0, l.requires_grad ? sum(e) : 0};
      const unsigned bit = 1u << code;
      Cost out;
      out.forward = e.exists & bit ? 0 : piece->forward.all();
      out.all = out.forward;
      if (l.requires_grad)
        out.all += e.gradients & bit ? space_.sum(l.type, code) : piece->backward.all() + sum(e);
      return out;
    };
    double by_code[4 * kCodes];
    int codes = 0;
    for (Code code = 0; code < kCodes; ++code) {
      if (!(l.codes >> code & 1u)) continue;
      const Cost from_x = cost(x, code), from_y = cost(y, code);
      by_code[codes++] = std::max({0.0, from_x.forward - from_y.forward, from_x.all - from_y.all});
    }
    // Each reader wants one layout; layouts wanted twice are there the second time.
    std::sort(by_code, by_code + codes, std::greater<>());
    const int readers = l.readers >= kManyReaders ? codes : std::min(l.readers, codes);
    for (int k = 0; k < readers; ++k) most += by_code[k];
    // The first contribution to a value is no sum.
    if (!weight && l.requires_grad && !y.has_gradient)
      most += x.has_gradient ? sum(y) : std::max(0.0, sum(y) - sum(x));
  }
  return Excess{most * micro_batches, memory_ ? excess_bytes(a, b, live) : 0};
}

}  // namespace nns::solve
