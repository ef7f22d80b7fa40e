#include "base/mapped.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace nns {

MappedFile::MappedFile(const std::string& path, std::string_view area) : path_(path) {
  const auto give_up = [&](int fd, const char* reason) {
    if (fd >= 0) ::close(fd);
    fail(ErrorKind::usage, "[{}] cannot read '{}': {}", area, path, reason);
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) give_up(fd, std::strerror(errno));
  struct stat info{};
  if (::fstat(fd, &info) != 0) give_up(fd, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) give_up(fd, "it is a folder or device; expected a file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) give_up(fd, std::strerror(errno));
    data_ = static_cast<const char*>(data);
  }
  ::close(fd);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

void MappedFile::forget(size_t begin, size_t end) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  if (data_ != nullptr && begin < end && end <= size_)
    ::madvise(const_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace nns
