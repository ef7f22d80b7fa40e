// Parquet files by Arrow's C++ libraries, those of the pyarrow wheel.
#include "data/parquet.h"

#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include "base/error.h"

namespace nns::data {
namespace {

constexpr const char* kArea = "data.prepare";

class ArrowFile : public Parquet {
 public:
  ArrowFile(const std::string& path, const std::string& column) : path_(path), name_(column) {
    guarded([&] {
      const auto reader = open();
      const auto& metadata = *reader->parquet_reader()->metadata();
      column_ = metadata.schema()->ColumnIndex(column);
      if (column_ < 0)
        fail(ErrorKind::data, "[{}] '{}' has no column '{}'; it has {}", kArea, path, column,
             columns(metadata));
      int64_t row = 0;
      for (int i = 0; i < metadata.num_row_groups(); ++i) {
        bytes_.push_back(std::max<int64_t>(1, metadata.RowGroup(i)->total_byte_size()));
        first_row_.push_back(row);
        row += metadata.RowGroup(i)->num_rows();
      }
    });
  }

  std::vector<int64_t> row_groups() const override { return bytes_; }

  void read(int64_t begin, int64_t end,
            const std::function<bool(std::string_view)>& add) const override {
    guarded([&] {
      const auto reader = open();
      std::vector<int> groups;
      for (int64_t i = begin; i < end; ++i) groups.push_back(static_cast<int>(i));
      const auto batches = take(reader->GetRecordBatchReader(groups, {column_}));
      int64_t row = first_row_.at(static_cast<size_t>(begin));
      for (;;) {
        const auto batch = take(batches->Next());
        if (batch == nullptr || !add_all(*batch->column(0), row, add)) return;
        row += batch->num_rows();
      }
    });
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> open() const {
    parquet::arrow::FileReaderBuilder builder;
    check(builder.OpenFile(path_, /*memory_map=*/true));
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(4096);  // rows that are in memory at a time
    std::unique_ptr<parquet::arrow::FileReader> out;
    check(builder.properties(properties)->Build(&out));
    return out;
  }

  bool add_all(const arrow::Array& texts, int64_t first,
               const std::function<bool(std::string_view)>& add) const {
    switch (texts.type_id()) {
      case arrow::Type::STRING:
        return add_each(static_cast<const arrow::StringArray&>(texts), first, add);
      case arrow::Type::LARGE_STRING:
        return add_each(static_cast<const arrow::LargeStringArray&>(texts), first, add);
      default:
        fail(ErrorKind::data, "[{}] column '{}' of '{}' holds {}; expected texts", kArea, name_,
             path_, texts.type()->ToString());
    }
  }

  template <typename Texts>
  bool add_each(const Texts& texts, int64_t first,
                const std::function<bool(std::string_view)>& add) const {
    check(texts.Validate());  // offsets are those of the file
    for (int64_t i = 0; i < texts.length(); ++i) {
      if (texts.IsNull(i))
        fail(ErrorKind::data, "[{}] row {} of '{}' has no text in its column '{}'", kArea,
             first + i, path_, name_);
      if (!add(texts.GetView(i))) return false;
    }
    return true;
  }

  static std::string columns(const parquet::FileMetaData& metadata) {
    std::string out;
    for (int i = 0; i < std::min(metadata.num_columns(), 20); ++i)
      out += fmt::format("{}'{}'", i == 0 ? "" : ", ",
                         metadata.schema()->Column(i)->path()->ToDotString());
    return out.empty() ? "none" : out;
  }

  void check(const arrow::Status& status) const {
    if (!status.ok())
      fail(ErrorKind::data, "[{}] '{}' is no Parquet file that can be read: {}", kArea, path_,
           status.message());
  }
  template <typename T>
  T take(arrow::Result<T> result) const {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }
  // Some of its functions throw where others return a status.
  template <typename F>
  void guarded(const F& f) const {
    try {
      f();
    } catch (const parquet::ParquetException& e) {
      check(arrow::Status::Invalid(e.what()));
    }
  }

  std::string path_, name_;
  int column_ = -1;
  std::vector<int64_t> bytes_, first_row_;  // of each row group
};

}  // namespace
}  // namespace nns::data

extern "C" void nns_open_parquet(const std::string& path, const std::string& column,
                                 std::shared_ptr<const nns::data::Parquet>& out) {
  out = std::make_shared<const nns::data::ArrowFile>(path, column);
}
