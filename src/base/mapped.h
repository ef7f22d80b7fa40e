// A file mapped read-only into memory: what is not touched is not read.
#pragma once

#include <string>
#include <string_view>

namespace nns {

class MappedFile {
 public:
  // Maps the whole file, or throws a usage Error of the given area that names path and reason.
  MappedFile(const std::string& path, std::string_view area);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {data_, size_}; }
  // Gives the memory of bytes [begin, end) back; they are read again where they are needed.
  void forget(size_t begin, size_t end) const;

 private:
  std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace nns
