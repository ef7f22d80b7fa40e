#include "lower/products.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "lower/uses.h"
#include "operators/record.h"

namespace nns::lower {
namespace {

// Multiplications below which the rule leaves a product to ATen, and the least size of a tile.
constexpr int64_t kLeastWork = 1 << 24, kLeast = 16;

// A product of float32 that tiles can make; nothing for others. `plain`: the operator that is not
// tiled. Its kernel is left open.
std::optional<ProductCall> product_of(const Program& program, const Instr& instr,
                                      const std::string& plain) {
  const operators::CallView call(
      plain, instr.args, [&](int id) -> const TensorType& { return program.slot(id).type; });
  const std::vector<int> in = reads(instr);
  const TensorType& out = program.slot(instr.outs[0]).type;
  const bool fits = std::all_of(in.begin(), in.end(),
                                [&](int id) { return program.slot(id).type.dtype == DType::f32; });
  if (!fits || out.shape.size() < 2 || numel(out.shape) == 0) return std::nullopt;
  const auto elements = static_cast<double>(numel(out.shape));
  ProductCall p{"", plain, 0, 0, out.shape.back(), ""};
  p.rows = numel(out.shape) / p.columns;
  p.inner = static_cast<int64_t>(operators::flops(call) / 2 / elements);
  if (p.inner == 0 || program.slot(in[1]).type.shape.size() < 2) return std::nullopt;
  p.key = fmt::format("{} float32 {}x{}x{}", plain, p.rows, p.inner, p.columns);
  return p;
}

bool is_large(const ProductCall& p) {
  return std::min({p.rows, p.inner, p.columns}) >= kLeast &&
         p.rows * p.inner * p.columns >= kLeastWork;
}

// Whether tiles make it.
bool tiled(const ProductCall& p, const Products& choice) {
  if (choice.forbidden.count(kTiles) > 0) return false;
  if (choice.forbidden.count(kAten) > 0) return true;
  if (const auto found = choice.measured.find(p.key); found != choice.measured.end())
    return found->second == kTiles;
  return choice.by_rule.count(p.op) > 0 && is_large(p);
}

[[noreturn]] void refuse(const Instr& instr, const Products& choice) {
  const bool both = choice.forbidden.size() > 1;
  fail(ErrorKind::plan,
       "[lower.products] {}{}: forbidden are {}; expected that {} may serve it. hint: take one out "
       "of forbid_kernels",
       instr.op, instr.module.empty() ? "" : " of " + instr.module,
       fmt::join(choice.forbidden, ", "),
       both ? "'aten' or 'tiles'" : "'aten', the only kernel for it,");
}

}  // namespace

std::vector<ProductCall> products(const Program& program) {
  std::vector<ProductCall> found;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      const operators::Record* record =
          instr.kind == InstrKind::call ? operators::find(instr.op) : nullptr;
      if (record == nullptr || record->tiled.empty() == record->untiled.empty()) continue;
      auto product = product_of(program, instr, record->tiled.empty() ? record->untiled : instr.op);
      if (!product || std::any_of(found.begin(), found.end(),
                                  [&](const ProductCall& p) { return p.key == product->key; }))
        continue;
      product->kernel = record->tiled.empty() ? kTiles : kAten;
      found.push_back(std::move(*product));
    }
  return found;
}

void choose_products(Program& program, const Products& choice, const std::string& device) {
  for (Segment& segment : program.segments)
    for (Instr& instr : segment.instrs) {
      const operators::Record* record =
          instr.kind == InstrKind::call ? operators::find(instr.op) : nullptr;
      if (record == nullptr || record->tiled.empty()) continue;
      const auto product = device == "cpu" ? product_of(program, instr, instr.op) : std::nullopt;
      if (product && tiled(*product, choice)) {
        instr.op = record->tiled;
      } else if (choice.forbidden.count(kAten) > 0) {
        refuse(instr, choice);
      }
    }
}

}  // namespace nns::lower
