// Splits whose parts are more than the call on local tensors: means, tables cut by rows, classes on
// several devices, statistics of a batch that is cut. `lower` writes such parts (lower/part.h).
#pragma once

#include "annotate/grammar.h"

namespace nns::annotate {

bool is_assisted(const CallView& call, const Split& split);
// Whether the call is a loss with a reduction whose mean may be cut.
bool is_loss(std::string_view op);

}  // namespace nns::annotate
