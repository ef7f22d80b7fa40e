// Opening, slicing and writing safetensors files; the hostile part of reading is in header.cpp.
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "checkpoint/dtypes.h"

namespace nns::safetensors {

std::shared_ptr<const File> File::open(const std::string& path, std::string_view area) {
  MappedFile mapped(path, area);
  Header header = parse(mapped.bytes(), path, area);
  std::shared_ptr<File> file(new File(std::move(mapped), std::move(header)));
  for (size_t i = 0; i < file->header_.entries.size(); ++i)
    file->index_.emplace(file->header_.entries[i].name, i);
  return file;
}

const Entry* File::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &header_.entries[it->second];
}

const Entry& File::at(std::string_view name) const {
  if (const Entry* entry = find(name)) return *entry;
  fail(ErrorKind::state, "[checkpoint.read] '{}' has no tensor '{}' (it has {})", path(), name,
       header_.entries.size());
}

std::string_view File::bytes(const Entry& entry) const {
  return mapped_.bytes().substr(header_.data_offset + entry.begin, entry.end - entry.begin);
}

void File::forget(const Entry& entry) const {
  mapped_.forget(header_.data_offset + entry.begin, header_.data_offset + entry.end);
}

void File::copy(const Entry& entry, const std::vector<Range>& slice, char* out) const {
  constexpr uint64_t kPiece = 16 << 20;  // bytes
  const uint64_t size = entry.end - entry.begin;
  const auto forget = [&](uint64_t begin, uint64_t end) {
    mapped_.forget(header_.data_offset + entry.begin + begin,
                   header_.data_offset + entry.begin + end);
  };
  if (size <= kPiece || slice.size() != entry.type.shape.size()) {
    copy_slice(bytes(entry), entry.type, slice, out);
    forget(0, size);
    return;
  }
  // By rows, the first dimension: a row is row_bytes of the file, and of `out` what the slice has.
  const auto rows = static_cast<uint64_t>(entry.type.shape[0]);
  const uint64_t row_bytes = size / rows;
  uint64_t row_out = static_cast<uint64_t>(size_of(entry.type.dtype));
  for (size_t d = 1; d < slice.size(); ++d)
    row_out *= static_cast<uint64_t>(std::max<int64_t>(slice[d].stop - slice[d].start, 0));
  const auto step = static_cast<int64_t>(std::max<uint64_t>(kPiece / row_bytes, 1));
  std::vector<Range> piece = slice;
  do {
    piece[0].stop = std::min(piece[0].start + step, slice[0].stop);
    copy_slice(bytes(entry), entry.type, piece, out);
    forget(static_cast<uint64_t>(piece[0].start) * row_bytes,
           static_cast<uint64_t>(piece[0].stop) * row_bytes);
    out += static_cast<uint64_t>(piece[0].stop - piece[0].start) * row_out;
    piece[0].start = piece[0].stop;
  } while (piece[0].start < slice[0].stop);
}

void copy_slice(std::string_view bytes, const TensorType& type, const std::vector<Range>& slice,
                char* out) {
  const Shape& shape = type.shape;
  if (slice.size() != shape.size())
    fail(ErrorKind::state, "[checkpoint.slice] {} ranges for a tensor {}; expected {}",
         slice.size(), to_string(type), shape.size());
  bool empty = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto [start, stop] = slice[d];
    if (start < 0 || stop < start || stop > shape[d])
      fail(ErrorKind::state, "[checkpoint.slice] range [{}, {}) leaves dimension {} of {}", start,
           stop, d, to_string(type));
    empty = empty || start == stop;
  }
  if (empty) return;
  // Trailing dimensions taken whole form one run of bytes; the rest is walked like an odometer.
  size_t outer = shape.size();
  uint64_t run = static_cast<uint64_t>(size_of(type.dtype));
  while (outer > 0) {
    const auto [start, stop] = slice[outer - 1];
    run *= static_cast<uint64_t>(stop - start);
    --outer;
    if (start != 0 || stop != shape[outer]) break;
  }
  std::vector<uint64_t> stride(shape.size() + 1);  // in bytes
  stride[shape.size()] = static_cast<uint64_t>(size_of(type.dtype));
  for (size_t d = shape.size(); d-- > 0;)
    stride[d] = stride[d + 1] * static_cast<uint64_t>(shape[d]);
  uint64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d)
    at += static_cast<uint64_t>(slice[d].start) * stride[d + 1];
  std::vector<int64_t> index(outer);
  for (size_t d = 0; d < outer; ++d) index[d] = slice[d].start;
  while (true) {
    std::memcpy(out, bytes.data() + at, run);
    out += run;
    size_t d = outer;
    while (d-- > 0) {
      at += stride[d + 1];
      if (++index[d] < slice[d].stop) break;
      at -= static_cast<uint64_t>(slice[d].stop - slice[d].start) * stride[d + 1];
      index[d] = slice[d].start;
    }
    if (d == static_cast<size_t>(-1)) return;
  }
}

std::string make_header(std::vector<Item>& items,
                        const std::map<std::string, std::string>& metadata) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    const auto size = [](const Item& i) { return size_of(i.type.dtype); };
    return size(a) != size(b) ? size(a) > size(b) : a.name < b.name;
  });
  const auto quoted = [](const std::string& text) {
    try {
      return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      fail(ErrorKind::state, "[checkpoint.write] a tensor name or metadata entry is not UTF-8");
    }
  };
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      text += fmt::format("{}{}:{}", text.back() == '{' ? "" : ",", quoted(key), quoted(value));
    text += '}';
  }
  std::set<std::string_view> names{"__metadata__"};
  uint64_t at = 0;
  for (const Item& item : items) {
    const auto dtype = format_name(item.type.dtype);
    if (!dtype)
      fail(ErrorKind::state, "[checkpoint.write] tensor '{}' is {}, which the format does not know",
           item.name, name_of(item.type.dtype));
    if (!names.insert(item.name).second)
      fail(ErrorKind::state, "[checkpoint.write] the name '{}' is taken; expected distinct names",
           item.name);
    const uint64_t end = at + static_cast<uint64_t>(bytes_of(item.type));
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        text.back() == '{' ? "" : ",", quoted(item.name), *dtype,
                        fmt::join(item.type.shape, ","), at, end);
    at = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  if (size > kMaxHeader)
    fail(ErrorKind::state, "[checkpoint.write] the header has {} bytes; expected at most {}", size,
         kMaxHeader);
  std::string out(8, '\0');
  std::memcpy(out.data(), &size, 8);
  return out + text;
}

void write(const std::string& path, std::vector<Item> items,
           const std::map<std::string, std::string>& metadata, std::string_view area,
           const std::atomic<bool>* stop) {
  constexpr uint64_t kMost = 64 << 20;  // bytes at a time
  const std::string header = make_header(items, metadata);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const auto give_up = [&](int reason = errno) {
    if (fd >= 0) {
      ::close(fd);
      ::unlink(path.c_str());
    }
    fail(ErrorKind::state, "[{}] cannot write '{}': {}", area, path, std::strerror(reason));
  };
  if (fd < 0) give_up();
  const auto put = [&](const char* data, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
      if (stop != nullptr && stop->load()) give_up(ECANCELED);
      const ssize_t n = ::write(fd, data + done, std::min<uint64_t>(size - done, kMost));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) give_up();
      done += static_cast<uint64_t>(n);
    }
  };
  put(header.data(), header.size());
  for (const Item& item : items)
    put(static_cast<const char*>(item.data), static_cast<uint64_t>(bytes_of(item.type)));
  if (::fsync(fd) != 0) give_up();
  ::close(fd);
}

}  // namespace nns::safetensors
