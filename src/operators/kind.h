// Names of the kinds of operators, as scripts say them.
#pragma once

#include <optional>
#include <string_view>

#include "operators/record.h"

namespace nns::operators {

std::string_view name_of(Kind kind);  // "linear"; "other" has no name of its own: ""
std::optional<Kind> kind_from_name(std::string_view name);
// Names of all kinds, as a list for messages.
std::string_view kind_names();
// The kind of an operator; `other` where it has no record.
Kind kind_of(std::string_view op);

}  // namespace nns::operators
