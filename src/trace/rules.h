// What a graph cannot hold, and what is known of memory layout while tracing.
#pragma once

#include <string>
#include <vector>

#include "operators/record.h"

namespace nns::trace {

// Throws a model Error for operators that read the data of a tensor (item, equal, …).
void refuse_data_reader(const std::string& op);
// Throws a model Error for calls whose result shapes depend on data (nonzero, a boolean index, …).
void refuse_data_dependent(const operators::CallView& call);
// Throws a model Error for operators whose random numbers come from hidden state.
void refuse_random(const std::string& op, bool random);

// A graph has no strides, so a call that demands some (`view`) is recorded as `reshape`, which
// serves whatever lowering chooses: changes operator and arguments where that applies. `type_of`
// gives types of values.
void forget_strides(std::string& op, std::vector<graph::NamedArg>& args,
                    const operators::CallView::TypeOf& type_of);

// Whether the call updates its running statistics (batch_norm and its kin in training mode).
bool writes_statistics(const std::vector<graph::NamedArg>& args);

// Whether a result is known to be dense in row-major order. `dense`: all tensors read are;
// `factory`: there are none.
bool keeps_contiguous(const std::string& op, const std::vector<graph::NamedArg>& args, bool dense,
                      bool factory);

}  // namespace nns::trace
