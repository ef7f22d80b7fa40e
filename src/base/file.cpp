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

namespace {

namespace fs = std::filesystem;

// Writes all bytes to `file` and closes it; returns 0, or the reason as errno.
int write_bytes(const std::string& file, int flags, std::string_view bytes, bool sync) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC | flags, 0644);
  if (fd < 0) return errno;
  const auto give_up = [fd] {
    const int reason = errno;
    ::close(fd);
    return reason;
  };
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return give_up();
    done += static_cast<size_t>(n);
  }
  if (sync && ::fsync(fd) != 0) return give_up();
  return ::close(fd) == 0 ? 0 : errno;
}

}  // namespace

void write_file_atomic(const std::string& path, std::string_view bytes, std::string_view area) {
  const auto check = [&](int reason) {
    if (reason != 0)
      fail(ErrorKind::state, "[{}] cannot write '{}': {}", area, path, std::strerror(reason));
  };
  std::error_code unknown;
  const auto status = fs::status(path, unknown);
  if (fs::is_directory(status)) check(EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status))
    return check(write_bytes(path, 0, bytes, false));  // a device or a pipe stays what it is
  std::string target = path;
  if (fs::is_symlink(path, unknown) && fs::exists(status)) target = fs::canonical(path).string();
  const std::string tmp = fmt::format("{}.tmp{}", target, ::getpid());
  int reason = write_bytes(tmp, O_CREAT | O_TRUNC, bytes, true);
  if (reason == 0 && ::rename(tmp.c_str(), target.c_str()) != 0) reason = errno;
  if (reason != 0) ::unlink(tmp.c_str());
  check(reason);
}

}  // namespace nns
