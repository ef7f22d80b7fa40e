#include "checkpoint/folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"

namespace nns::checkpoint {
namespace {

namespace fs = std::filesystem;

// Names of what is being written or removed: ".writing-PID-…", ".removing-PID-…".
constexpr std::string_view kWriting = ".writing-", kRemoving = ".removing-";

[[noreturn]] void cannot(std::string_view what, const std::string& path, int reason) {
  fail(ErrorKind::state, "[checkpoint.save] cannot {} '{}': {}", what, path, std::strerror(reason));
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) cannot("open", path, errno);
  // Some file systems refuse to sync folders (EINVAL); there is nothing better to do on them.
  if (::fsync(fd) != 0 && errno != EINVAL) {
    const int reason = errno;
    ::close(fd);
    cannot("sync", path, reason);
  }
  ::close(fd);
}

bool alive(const std::string& pid_text) {
  const long pid = std::strtol(pid_text.c_str(), nullptr, 10);
  return pid > 0 && pid != ::getpid() &&
         (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

void sync_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) cannot("open", path.string(), errno);
  const int reason = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (reason != 0) cannot("sync", path.string(), reason);
}

// Under a name that no reader takes for a checkpoint, so that a removal cut short does no harm.
void remove_folder(const fs::path& save_dir, const std::string& name) {
  const fs::path away = save_dir / fmt::format("{}{}-{}", kRemoving, ::getpid(), name);
  std::error_code ec;
  fs::rename(save_dir / name, away, ec);
  if (!ec) fs::remove_all(away, ec);
}

// Gives what has the name `next` the name `target`, whatever had it before: at once where the file
// system can exchange names.
void take_place(const std::string& next, const fs::path& target) {
  if (::rename(next.c_str(), target.c_str()) == 0) return;
  const bool taken = errno == ENOTEMPTY || errno == EEXIST || errno == EISDIR || errno == ENOTDIR;
  if (!taken) cannot("rename to", target.string(), errno);
  if (::renameat2(AT_FDCWD, next.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;
    fs::remove_all(next, ignored);
    return;
  }
  remove_folder(target.parent_path(), target.filename().string());
  if (::rename(next.c_str(), target.c_str()) != 0) cannot("rename to", target.string(), errno);
}

// Copies the files of a folder and syncs them.
void copy_folder(const fs::path& from, const std::string& to) {
  std::error_code ec;
  fs::copy(from, to, ec);
  if (ec) cannot("copy to", to, ec.value());
  for (const auto& entry : fs::directory_iterator(to)) sync_file(entry.path());
  sync_folder(to);
}

}  // namespace

std::string folder_name(int64_t epoch, int64_t step) {
  return fmt::format("{:04d}-{:04d}", epoch, step);
}

std::vector<Saved> whole_checkpoints(const std::string& save_dir) {
  std::vector<Saved> out;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(save_dir, ec)) {
    const std::string name = entry.path().filename().string();
    Saved saved{name, 0, 0};
    int used = 0;
    long long epoch = 0, step = 0;
    if (std::sscanf(name.c_str(), "%18lld-%18lld%n", &epoch, &step, &used) != 2 || epoch < 0 ||
        step < 0 || name != folder_name(epoch, step) || !fs::exists(entry.path() / kManifest, ec))
      continue;
    saved.epoch = epoch;
    saved.step = step;
    out.push_back(saved);
  }
  std::sort(out.begin(), out.end(), [](const Saved& a, const Saved& b) {
    return std::pair(a.step, a.epoch) < std::pair(b.step, b.epoch);
  });
  return out;
}

Claim::Claim(const std::string& save_dir) {
  std::error_code ec;
  if (fs::create_directories(save_dir, ec)) made_ = save_dir;
  if (ec) cannot("make the folder", save_dir, ec.value());
  if (::access(save_dir.c_str(), W_OK | X_OK) != 0) cannot("write to", save_dir, errno);
  fd_ = ::open(save_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) cannot("open", save_dir, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  ::close(fd_);
  fd_ = -1;
  if (reason == EWOULDBLOCK)
    throw Error(ErrorKind::usage,
                fmt::format("[checkpoint.save_dir] another run writes to '{}'; expected a folder "
                            "of this run alone",
                            save_dir),
                "set checkpoint.save_dir to another folder, or wait for that run to end");
  // Some file systems have no locks of folders.
  log::warning("nnscaler.checkpoint", "cannot tell whether another run writes to '{}': {}",
               save_dir, std::strerror(reason));
}

Claim::~Claim() {
  std::error_code ignored;
  if (!made_.empty()) fs::remove(made_, ignored);  // leaves a folder that holds something
  if (fd_ >= 0) ::close(fd_);
}

Draft::Draft(std::string save_dir, std::string name)
    : save_dir_(std::move(save_dir)), name_(std::move(name)) {
  std::error_code ec;
  fs::create_directories(save_dir_, ec);
  if (ec) cannot("make the folder", save_dir_, ec.value());
  for (const auto& entry : fs::directory_iterator(save_dir_, ec)) {
    const std::string left = entry.path().filename().string();
    for (const std::string_view prefix : {kWriting, kRemoving})
      if (left.rfind(prefix, 0) == 0 && !alive(left.substr(prefix.size()))) {
        std::error_code ignored;
        fs::remove_all(entry.path(), ignored);
      }
  }
  temporary_ = (fs::path(save_dir_) / fmt::format("{}{}-{}", kWriting, ::getpid(), name_)).string();
  if (!fs::create_directory(temporary_, ec)) cannot("make the folder", temporary_, ec.value());
}

Draft::~Draft() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

std::string Draft::path(std::string_view file) const {
  return (fs::path(temporary_) / file).string();
}

void Draft::write(std::string_view file, std::string_view bytes) {
  const std::string target = path(file);
  const int fd = ::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) cannot("write", target, errno);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  const bool good = done == bytes.size() && ::fsync(fd) == 0;
  const int reason = errno;
  ::close(fd);
  if (!good) cannot("write", target, reason);
}

std::string Draft::commit() {
  const std::string target = (fs::path(save_dir_) / name_).string();
  sync_folder(temporary_);
  take_place(temporary_, target);
  committed_ = true;
  sync_folder(save_dir_);
  return target;
}

void point(const std::string& save_dir, const std::string& pointer, const std::string& name,
           bool copy) {
  const fs::path folder(save_dir);
  const std::string next =
      (folder / fmt::format("{}{}-{}", kWriting, ::getpid(), pointer)).string();
  std::error_code ignored;
  fs::remove_all(next, ignored);
  try {
    if (copy)
      copy_folder(folder / name, next);
    else if (::symlink(name.c_str(), next.c_str()) != 0)
      cannot("make the link", next, errno);
    take_place(next, folder / pointer);
  } catch (...) {
    fs::remove_all(next, ignored);
    throw;
  }
  sync_folder(save_dir);
}

void prune(const std::string& save_dir, int64_t keep) {
  std::set<std::string> named;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(save_dir, ec))
    if (entry.is_symlink(ec)) named.insert(fs::read_symlink(entry.path(), ec).filename().string());
  const auto saved = whole_checkpoints(save_dir);
  const auto excess = static_cast<int64_t>(saved.size()) - keep;
  for (int64_t i = 0; i < excess; ++i)
    if (named.count(saved[static_cast<size_t>(i)].name) == 0)
      remove_folder(save_dir, saved[static_cast<size_t>(i)].name);
}

}  // namespace nns::checkpoint
