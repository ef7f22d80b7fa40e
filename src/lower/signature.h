// Argument names of the operators that the lowering emits, in the order of their schemas, so that
// rules can write positional calls. Each is compared with LibTorch's schema by a test.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

struct Signature {
  std::string_view op;
  std::string_view names;  // separated by blanks
  // Of derivative operators, which have no row in the operator table: the arguments whose types
  // their outputs have; "@name" stands for the shape that an integer list spells.
  std::string_view outputs = {};
};

// All signatures, sorted by operator.
const std::vector<Signature>& signatures();
// Names of the arguments of `op`; an internal Error if it is not listed.
std::vector<std::string_view> argument_names(std::string_view op);
// Types of the outputs of a derivative operator; nothing for others.
std::optional<std::vector<TensorType>> derivative_types(std::string_view op,
                                                        const std::vector<NamedArg>& args,
                                                        const Program& program);

}  // namespace nns::lower
