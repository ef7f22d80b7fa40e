// Texts in a column of a Parquet file. Arrow, which the pyarrow wheel brings, is behind a library
// of its own, libnnscaler_parquet.so, opened at its first use: who has no such files needs none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nns::data {

class Parquet {
 public:
  virtual ~Parquet() = default;
  // Uncompressed bytes of each row group, as the file says; for cutting the work.
  virtual std::vector<int64_t> row_groups() const = 0;
  // Calls `add` for the texts of row groups [begin, end) in order, until it returns false; a data
  // Error names the first row without a text. May be called by several threads.
  virtual void read(int64_t begin, int64_t end,
                    const std::function<bool(std::string_view)>& add) const = 0;
};

// Opens a file; a usage Error where this program has no library for it, a data Error where the file
// is damaged or has no such column of texts.
std::shared_ptr<const Parquet> open_parquet(const std::string& path, const std::string& column);

// The entry of the library.
inline constexpr const char* kParquetLibrary = "libnnscaler_parquet.so";
inline constexpr const char* kParquetFunction = "nns_open_parquet";
using OpenParquet = void(const std::string& path, const std::string& column,
                         std::shared_ptr<const Parquet>& out);

}  // namespace nns::data
