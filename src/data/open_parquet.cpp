// Opens the library that reads Parquet files.
#include "base/error.h"
#include "base/plugin.h"
#include "data/parquet.h"

namespace nns::data {

std::shared_ptr<const Parquet> open_parquet(const std::string& path, const std::string& column) {
  const auto plugin = open_plugin(kParquetLibrary, kParquetFunction);
  if (plugin.function == nullptr)
    throw Error(ErrorKind::usage,
                fmt::format("[data.prepare] '{}' is a Parquet file, for which this program has no "
                            "library: {}",
                            path, plugin.error),
                "install pyarrow beside torch and build again, or give .jsonl files");
  std::shared_ptr<const Parquet> out;
  reinterpret_cast<OpenParquet*>(plugin.function)(path, column, out);
  return out;
}

}  // namespace nns::data
