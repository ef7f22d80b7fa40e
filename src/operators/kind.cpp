#include "operators/kind.h"

#include <array>

namespace nns::operators {
namespace {

struct Named {
  Kind kind;
  std::string_view name;
};
constexpr std::array kNames = {Named{Kind::sum, "sum"},
                               Named{Kind::linear, "linear"},
                               Named{Kind::embedding, "embedding"},
                               Named{Kind::class_loss, "class_loss"},
                               Named{Kind::experts, "experts"},
                               Named{Kind::attention, "attention"}};

}  // namespace

std::string_view name_of(Kind kind) {
  for (const Named& named : kNames)
    if (named.kind == kind) return named.name;
  return "";
}

std::optional<Kind> kind_from_name(std::string_view name) {
  for (const Named& named : kNames)
    if (named.name == name) return named.kind;
  return {};
}

std::string_view kind_names() {
  return "sum, linear, embedding, class_loss, experts, attention";
}

Kind kind_of(std::string_view op) {
  const Record* record = find(op);
  return record == nullptr ? Kind::other : record->kind;
}

}  // namespace nns::operators
