// Which kernel makes a matrix product: ATen's, or tiles of ours. What was measured on the machine
// decides, else a rule; the choice stands in the Program.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

inline constexpr const char *kAten = "aten", *kTiles = "tiles";

struct Products {
  std::map<std::string, std::string, std::less<>> measured;  // kernels by the key of a product
  std::set<std::string, std::less<>> by_rule;    // operators whose products are tiled, not measured
  std::set<std::string, std::less<>> forbidden;  // kernels
};

// A product that both kernels could make.
struct ProductCall {
  std::string key;  // operator and sizes: "aten::linear float32 3072x384x1152"
  std::string op;   // ATen's or the like
  int64_t rows, inner, columns;
  std::string kernel;  // that makes it in the Program
};
// Those of a Program, each once, in order.
std::vector<ProductCall> products(const Program& program);

// Puts the chosen kernel's operator in the place of each product's. A plan Error names a product
// that only a forbidden kernel serves.
void choose_products(Program& program, const Products& choice, const std::string& device);

}  // namespace nns::lower
