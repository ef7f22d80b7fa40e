// From what the user wrote to the complete job: components in one form, defaults filled in, `$(…)`
// replaced, every key and type checked against the schema.
#pragma once

#include <string>
#include <vector>

#include "job/value.h"

namespace nns::job {

// Completes the tree or throws a usage error with the place and the nearest name. `parameters` are
// the recipe's own, for suggestions.
// A component ends as { type, args, … }, or as the thing that stood in its place.
void resolve(Value& root, const std::vector<std::string>& parameters);

// Replaces $(a.b) by the value of that key, or of the environment variable; a text that is nothing
// else keeps the value's type. `$\(` stands for `$(`.
void substitute(Value& root);

// YAML text of a job, for the log.
std::string dump(const Value& root);

}  // namespace nns::job
