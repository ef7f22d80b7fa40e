#include "ops/isa.h"

#include <fmt/ranges.h>
#include <hwy/highway.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"

namespace nns::ops {
namespace {

struct Isa {
  std::string name;
  int64_t target;  // Highway's bit: the lower, the wider
};

std::string name_of(int64_t target) {
  switch (target) {
    case HWY_AVX3:
      return "avx512";
    case HWY_AVX2:
      return "avx2";
    case HWY_SSE4:
      return "sse4";
    case HWY_EMU128:
    case HWY_SCALAR:
      return "plain";
    default:
      return hwy::TargetName(target);
  }
}

const std::vector<Isa>& all() {
  static const std::vector<Isa> found = [] {
    std::vector<Isa> list;
    const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
    for (int64_t bit = 1; bit > 0; bit <<= 1)
      if (usable & bit) list.push_back({name_of(bit), bit});
    return list;
  }();
  return found;
}

std::mutex g_choosing;
const Isa* g_chosen = nullptr;  // nullptr: the widest

}  // namespace

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Isa& isa : all()) names.push_back(isa.name);
  return names;
}

std::string isa() {
  const std::lock_guard lock(g_choosing);
  return (g_chosen != nullptr ? *g_chosen : all().front()).name;
}

void choose_isa(const std::string& name) {
  const auto found = name.empty() ? all().begin()
                                  : std::find_if(all().begin(), all().end(),
                                                 [&](const Isa& isa) { return isa.name == name; });
  if (found == all().end())
    fail(ErrorKind::usage, "[ops.isa] instruction set '{}'; expected one of this processor: {}",
         name, fmt::join(isas(), ", "));
  const std::lock_guard lock(g_choosing);
  g_chosen = &*found;
  hwy::DisableTargets(found->target - 1);  // all wider ones
  const int64_t left = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(left);  // last: SupportedTargets itself sets all of the processor's
}

}  // namespace nns::ops
