// The safetensors format as plain bytes: an 8-byte little-endian length, a JSON header that names
// each tensor's dtype, shape and byte range, then the data. No LibTorch here.
//
// The reader trusts nothing the file says: every length is compared with the size of the file
// before it is used, ranges must cover the data exactly (no overlap, hole or trailing bytes), keys
// must be unique. What it cannot accept it refuses with path and tensor name.
//
//   auto file = safetensors::File::open("model.safetensors");
//   std::string_view bytes = file->bytes(file->at("wte.weight"));
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped.h"
#include "base/types.h"

namespace nns::safetensors {

struct Entry {
  std::string name;
  TensorType type;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

struct Header {
  std::vector<Entry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // of the data in the file
};

inline constexpr uint64_t kMaxHeader = 100'000'000;  // as in the reference implementation

// Returns the header of a whole file's bytes, or throws a state Error that begins with `[area]` and
// names `path`.
Header parse(std::string_view file, std::string_view path, std::string_view area);

// One dimension of a slice: elements start, …, stop - 1.
struct Range {
  int64_t start = 0, stop = 0;
};

class File {
 public:
  // Maps and parses a file; throws as `parse` does, and when it cannot be opened.
  static std::shared_ptr<const File> open(const std::string& path,
                                          std::string_view area = "checkpoint.read");

  const std::string& path() const { return mapped_.path(); }
  const std::vector<Entry>& entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Returns nullptr when there is no such tensor.
  const Entry* find(std::string_view name) const;
  // Throws a state Error that names the nearest tensor when there is no such one.
  const Entry& at(std::string_view name) const;
  std::string_view bytes(const Entry& entry) const;
  // What was read of a tensor need not stay in memory; it is read again when asked for.
  void forget(const Entry& entry) const;
  // Copies a slice of a tensor to `out` as `copy_slice` does, a piece at a time: what is read of
  // the file is in memory no longer than it takes, however large the tensor.
  void copy(const Entry& entry, const std::vector<Range>& slice, char* out) const;

 private:
  File(MappedFile mapped, Header header) : mapped_(std::move(mapped)), header_(std::move(header)) {}
  MappedFile mapped_;
  Header header_;
  std::map<std::string_view, size_t> index_;
};

// Copies a slice of a dense tensor to `out` (dense, row-major); touches only the bytes of the
// slice. Throws a state Error when a range leaves the tensor or their number is not its rank.
void copy_slice(std::string_view bytes, const TensorType& type, const std::vector<Range>& slice,
                char* out);

struct Item {
  std::string name;
  TensorType type;
  const void* data = nullptr;  // dense, row-major
};

// Returns the bytes before the data. `items` is put into file order: largest element size first
// (so that every tensor stays aligned), then by name; the same items give the same bytes.
// Throws a state Error for a repeated or reserved name, bad UTF-8, or a dtype the format lacks.
std::string make_header(std::vector<Item>& items,
                        const std::map<std::string, std::string>& metadata);

// Writes a new file and syncs it to the disk. Throws a state Error naming path and reason, also
// once `stop`, if any, is set; what was written is removed.
void write(const std::string& path, std::vector<Item> items,
           const std::map<std::string, std::string>& metadata,
           std::string_view area = "checkpoint.write", const std::atomic<bool>* stop = nullptr);

}  // namespace nns::safetensors
