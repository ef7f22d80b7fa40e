// Checkpoint folders on disk. A folder `{epoch:04d}-{step:04d}` is whole from the moment it has
// that name: it is written under a temporary name, every file and the folder are synced, then it is
// renamed; its manifest is written last. Pointers (`last`, `best`) are symbolic links, or copies,
// that are replaced at once. No LibTorch here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nns::checkpoint {

inline constexpr const char* kManifest = "manifest.json";

struct Saved {
  std::string name;
  int64_t epoch = 0, step = 0;
};

// "0002-0500"
std::string folder_name(int64_t epoch, int64_t step);
// Returns the whole checkpoints under a folder, oldest (by step, then epoch) first.
std::vector<Saved> whole_checkpoints(const std::string& save_dir);

// Keeps other runs out of a save folder, on all hosts that share it, while it lives: they are
// refused. It makes the folder, and is refused itself where nothing can be written there. A folder
// that it made and that is still empty goes away with it.
class Claim {
 public:
  explicit Claim(const std::string& save_dir);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  std::string made_;  // the folder, where it was not there before
  int fd_ = -1;
};

// A folder under a temporary name; removed again unless committed.
class Draft {
 public:
  // Makes save_dir and the temporary folder; removes what earlier processes left half done.
  Draft(std::string save_dir, std::string name);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::string& folder() const { return temporary_; }
  std::string path(std::string_view file) const;
  // Writes a file of the draft and syncs it.
  void write(std::string_view file, std::string_view bytes);
  // Syncs and renames; takes the place of a checkpoint of that name. Returns the final path.
  std::string commit();

 private:
  std::string save_dir_, name_, temporary_;
  bool committed_ = false;
};

// Lets `pointer` in save_dir be a link to the checkpoint, or a copy of it; at once, whatever it
// was.
void point(const std::string& save_dir, const std::string& pointer, const std::string& name,
           bool copy = false);
// Removes all but the newest `keep` checkpoints and those that a link in save_dir names.
void prune(const std::string& save_dir, int64_t keep);

}  // namespace nns::checkpoint
