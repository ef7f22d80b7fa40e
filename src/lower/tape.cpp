// Recording of calls and the reverse walk.
#include "lower/tape.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "lower/uses.h"

namespace nns::lower {

void Tape::set_flag(Ref ref) {
  if (requires_.size() <= static_cast<size_t>(ref.id)) requires_.resize(ref.id + 64, false);
  requires_[static_cast<size_t>(ref.id)] = true;
}

bool Tape::requires_grad(Ref ref) const {
  return ref.id >= 0 && static_cast<size_t>(ref.id) < requires_.size() &&
         requires_[static_cast<size_t>(ref.id)];
}

void Tape::remember(const Entry& entry) {
  for (size_t i = 0; i < entry.outs.size(); ++i)
    if (entry.outs[i].id >= 0)
      made_[entry.outs[i].id] = {entry.op, entry.args, i, entry.outs.size(), entry.region};
}

const operators::Recording::Made* Tape::maker(Ref ref) const {
  const auto found = made_.find(ref.id);
  return found != made_.end() && found->second.region == site_.region ? &found->second : nullptr;
}

// The calls of a composite, each on the tape by itself.
std::vector<Ref> Tape::expand(const operators::Record& composite, std::string_view op,
                              const std::vector<NamedArg>& args, const CallSite& site) {
  const auto body = composite.body(operators::CallView(
      op, args, [this](int id) -> const TensorType& { return e_.program().slot(id).type; }));
  std::map<int, Ref> made;
  size_t at = 0;
  for_each_ref(args, [&](Ref ref) { made[body->inputs.at(at++)] = ref; });
  for (const graph::Node& node : body->nodes) {
    std::vector<NamedArg> inner = node.args;
    for_each_ref(inner, [&](Ref& ref) { ref = made.at(ref.id); });
    std::vector<TensorType> types;
    for (int out : node.outputs) types.push_back(body->value({out}).type);
    CallSite where = site;
    where.ordinal = node.ordinal;
    where.grad_enabled = site.grad_enabled && node.context.grad_enabled;
    const auto outs = apply(node.op, std::move(inner), where, &types);
    for (size_t i = 0; i < outs.size(); ++i) made[node.outputs[i]] = outs[i];
  }
  std::vector<Ref> results;
  for (const graph::Nest& nest : body->outputs)
    results.push_back(made.at(std::get<Ref>(nest.node).id));
  return results;
}

std::vector<Ref> Tape::apply(std::string_view op, std::vector<NamedArg> args, const CallSite& site,
                             const std::vector<TensorType>* types) {
  const operators::Record* record = operators::find(op);
  if (record != nullptr && record->body && !record->backward)
    return expand(*record, op, args, site);
  const bool derives =
      record != nullptr && record->derivative.kind != operators::DerivativeKind::none;
  const operators::Derivative* rule = derives ? &record->derivative : nullptr;
  std::vector<bool> needs;
  bool any = false;
  for_each_ref(args, [&](Ref ref) {
    needs.push_back(requires_grad(ref));
    any = any || needs.back();
  });
  const bool constant = record != nullptr && record->constant;
  const bool differentiable = training_ && any && site.grad_enabled && !constant;

  const CallSite outer = std::exchange(site_, site);
  Entry entry{std::string(op), std::move(args), {}, std::move(needs), {}, rule,
              e_.origin(),     site.region};
  bool emitted = false, expanded = false;
  if (record != nullptr && (!record->kernels.empty() || (derives && rule->forward))) {
    operators::Forward f(*this, e_, entry.op, entry.args, differentiable, site.ordinal);
    const auto kernel = std::find_if(record->kernels.begin(), record->kernels.end(),
                                     [&](const operators::Kernel& k) { return k.serves(f); });
    if (kernel != record->kernels.end()) {
      kernel->write(f);
      emitted = expanded = true;
    } else if (derives && rule->forward) {
      emitted = rule->forward(f);
      expanded = emitted && rule->kind == operators::DerivativeKind::expansion;
    }
    if (emitted) {
      entry.outs = std::move(f.taken());
      entry.kept = std::move(f.kept());
      for (const auto& [name, ref] : entry.kept) {
        std::string& hint = e_.program().slots[static_cast<size_t>(ref.id)].name;
        if (hint.empty()) hint = name;
      }
    }
  }
  if (record != nullptr && record->body) {  // its derivative is a rule of its own
    CallSite plain = site;
    plain.grad_enabled = false;
    entry.outs = expand(*record, op, entry.args, plain);
    emitted = true;
  }
  if (!emitted)
    entry.outs = types != nullptr ? e_.call_typed(op, entry.args, *types) : e_.call(op, entry.args);
  site_ = outer;
  if (!expanded && !(record != nullptr && record->body)) remember(entry);

  // The calls of an expansion are on the tape themselves.
  if (!differentiable || expanded) return entry.outs;
  bool recorded = false;
  for (Ref out : entry.outs) {
    if (out.id < 0) continue;  // masked off
    const DType dtype = e_.dtype(out);
    if (!is_floating(dtype) && !is_complex(dtype)) continue;
    set_flag(out);
    recorded = true;
  }
  std::vector<Ref> outs = entry.outs;
  if (recorded) entries_.push_back(std::move(entry));
  return outs;
}

// The call itself, executed again under autograd: `vjp::<op>` takes its arguments, the gradients of
// its outputs and which operands want one.
std::vector<Ref> Tape::fallback(const Entry& entry, const std::vector<Ref>& grads) {
  if (on_fallback) on_fallback(entry.op);
  std::vector<NamedArg> args = entry.args;
  std::vector<TensorType> types;
  size_t at = 0;
  for_each_ref(entry.args, [&](Ref ref) {
    if (entry.needs[at++]) types.push_back(e_.type(ref));
  });
  args.push_back({"grad_outputs", grads});
  args.push_back({"needs", entry.needs});
  const std::vector<Ref> outs =
      e_.call_typed(std::string(kAgain) + entry.op, std::move(args), types);
  std::vector<Ref> given(entry.needs.size());
  size_t next = 0;
  for (size_t i = 0; i < given.size(); ++i)
    if (entry.needs[i]) given[i] = outs[next++];
  return given;
}

void Tape::derive(const Entry& entry, const std::vector<Ref>& grads, std::vector<Ref>& given) {
  if (entry.rule == nullptr || entry.rule->backward == nullptr) {
    given = fallback(entry, grads);
    return;
  }
  operators::Backward b(e_, entry.op, entry.args, entry.outs, grads, entry.kept, entry.needs);
  entry.rule->backward(b);
  given = b.given();
}

void Tape::name_gradient(Ref gradient, Ref of) {
  auto& slots = e_.program().slots;
  std::string& name = slots[static_cast<size_t>(gradient.id)].name;
  const std::string& full = slots[static_cast<size_t>(of.id)].name;
  if (name.empty()) name = "d_" + full.substr(full.rfind('.') + 1);
}

std::vector<Ref> Tape::reverse(const std::vector<std::pair<Ref, Ref>>& seeds,
                               const Leaves& leaves) {
  std::vector<Ref> grad_of(e_.program().slots.size());
  std::map<int, std::map<int, Ref>> replayed;
  for (const auto& [output, seed] : seeds) {
    Ref& sum = grad_of[static_cast<size_t>(output.id)];
    sum = sum.id < 0 ? seed : e_.add(sum, seed);
  }
  for (size_t k = entries_.size(); k-- > 0;) {
    const Entry* entry = &entries_[k];
    std::vector<Ref> grads;
    bool any = false;
    for (Ref out : entry->outs) {
      grads.push_back(out.id < 0 ? Ref{} : grad_of[static_cast<size_t>(out.id)]);
      any = any || grads.back().id >= 0;
    }
    if (!any) continue;
    e_.set_origin(entry->origin);
    Entry moved;
    if (entry->region >= 0) {
      auto found = replayed.find(entry->region);
      if (found == replayed.end()) {
        found = replayed.emplace(entry->region, replay(entry->region)).first;
        e_.set_origin(entry->origin);
      }
      const auto move = [&](Ref& ref) {
        if (const auto it = found->second.find(ref.id); it != found->second.end()) ref = it->second;
      };
      moved = *entry;
      for_each_ref(moved.args, move);
      for (Ref& ref : moved.outs) move(ref);
      for (auto& [name, ref] : moved.kept) move(ref);
    }
    std::vector<Ref> given;
    const size_t first_slot = e_.program().slots.size();
    derive(entry->region >= 0 ? moved : *entry, grads, given);
    size_t at = 0;
    for_each_ref(entry->args, [&](Ref ref) {
      const Ref g = given.at(at++);
      if (g.id < 0) return;
      if (g.id >= static_cast<int>(first_slot)) name_gradient(g, ref);
      if (leaves.given) leaves.given(entry->outs, ref, g);
      if (leaves.is_leaf(ref)) {
        leaves.receive(ref, g);
        return;
      }
      Ref& sum = grad_of[static_cast<size_t>(ref.id)];
      if (sum.id < 0) {
        sum = g;
      } else {
        sum = e_.add(sum, g);
        name_gradient(sum, ref);
      }
    });
  }
  return grad_of;
}

}  // namespace nns::lower
