#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace nns {

std::string read_file(const std::string& path, std::string_view area) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec))
    fail(ErrorKind::usage, "[{}] cannot read '{}': it is a folder; expected a file", area, path);
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorKind::usage, "[{}] cannot read '{}': {}", area, path, std::strerror(errno));
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

void write_file_atomic(const std::string& path, std::string_view bytes, std::string_view area) {
  const std::string tmp = fmt::format("{}.tmp{}", path, ::getpid());
  const auto give_up = [&](int fd) {
    const int reason = errno;
    if (fd >= 0) ::close(fd);
    ::unlink(tmp.c_str());
    fail(ErrorKind::state, "[{}] cannot write '{}': {}", area, path, std::strerror(reason));
  };
  const int fd = ::open(tmp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) give_up(fd);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) give_up(fd);
    done += static_cast<size_t>(n);
  }
  if (::fsync(fd) != 0) give_up(fd);
  if (::close(fd) != 0) give_up(-1);
  if (::rename(tmp.c_str(), path.c_str()) != 0) give_up(-1);
}

}  // namespace nns
