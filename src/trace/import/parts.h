// The parts of an exported program that are read apart from its graph.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trace/import/program.h"

namespace nns::trace::import {

// Parses JSON of an archive; a state Error where it is none or nested too deeply.
nlohmann::json parse_json(const Archive& archive, std::string_view what, std::string_view text);

// A dtype by its number in the schema of exported programs, or nothing.
std::optional<DType> dtype_of(int64_t code);

// A name that may stand in graphs and generated text: UTF-8 without control characters.
bool is_plain_name(std::string_view name);

// Weights, buffers and constants of the archive, each with a record that holds all of it.
std::vector<Stored> read_stored(const Archive& archive);

// Reads a pytree ("[1, {"type": "builtins.tuple", …}]"), with the fields of named tuples by type.
Tree read_tree(const Archive& archive, const std::string& spec,
               const std::map<std::string, std::vector<std::string>>& named_tuples);
size_t count_leaves(const Tree& tree);

// Draws from hidden state become draws that are functions of seed, module path and step:
// `x.bernoulli_(p)` and `rand(size)` are spelled with the operators that draw so.
void spell_draws(Body& body);

// Batch norms that decompositions had made functional become those that write their statistics, so
// that plans know them.
void spell_statistics(Program& program);

// The place that a stack trace of Python means: the innermost line outside of PyTorch's own layers.
void read_place(std::string_view stack_trace, Origin& origin);
// The innermost module of "key,path,class;key,path,class".
std::string read_module(std::string_view stack);

}  // namespace nns::trace::import
