// Readers of files that anybody may have written. Each target takes any bytes: they are read, or
// refused by an Error of its kind; an Error that means a fault of ours, any other exception and any
// crash is a finding. tests/unit/fuzz_test.cpp runs them for a moment, tests/fuzz/run for long.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "graph/graph.h"
#include "graph/json_text.h"
#include "job/parse.h"
#include "job/resolve.h"
#include "lower/program_json.h"
#include "tokenizer/tokenizer.h"

namespace nns::fuzz {

// Runs a reader; refusals of the user's bytes are what it may do beside reading them.
template <class Read>
void reads_or_refuses(const Read& read) {
  try {
    read();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::internal) throw;
  }
}

inline void safetensors(std::string_view bytes) {
  reads_or_refuses([&] {
    const auto header = nns::safetensors::parse(bytes, "x", "fuzz");
    for (const auto& entry : header.entries)  // what is accepted lies inside the file
      NNS_CHECK(entry.begin <= entry.end && header.data_offset + entry.end <= bytes.size(),
                "'{}' reaches from {} to {}", entry.name, entry.begin, entry.end);
  });
}

inline void tokenizer(std::string_view bytes) {
  reads_or_refuses([&] {
    const auto read = nns::tokenizer::read_json(bytes, "x");
    std::vector<int32_t> ids;
    read->encode("The 3 \xc3\xa4pfel\n\n won't\t<s> \xe6\x97\xa5\xe6\x9c\xac", {}, ids);
    for (const int32_t id : ids)
      NNS_CHECK(id >= 0 && id < read->size(), "id {} of {}", id, read->size());
    read->decode({ids.begin(), ids.end()});
  });
}

inline void yaml(std::string_view bytes) {
  reads_or_refuses([&] {
    auto root = job::parse_yaml(bytes, "x.yaml");
    job::substitute(root);
    job::resolve(root, {});
    job::dump(root);
  });
  reads_or_refuses([&] { job::parse_override(bytes); });
}

// Whether our scanner takes a text; nothing where it is no question of grammar: too deep, a byte
// order mark, or a number beyond 64 bits, which only the library refuses.
inline std::optional<bool> is_taken(std::string_view bytes) {
  try {
    const graph::JsonText text(bytes, 64);
    text.root().shown();
    return true;
  } catch (const nlohmann::json::out_of_range&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return false;
  } catch (const std::length_error&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Graphs and programs that were written before; the library is the judge of what is JSON.
inline void json(std::string_view bytes) {
  if (const auto taken = is_taken(bytes))
    NNS_CHECK(*taken == nlohmann::json::accept(bytes), "{} bytes: taken {}", bytes.size(), *taken);
  reads_or_refuses([&] { graph::from_json(bytes); });
  reads_or_refuses([&] { lower::from_json(bytes); });
}

}  // namespace nns::fuzz
