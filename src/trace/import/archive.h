// The archive of an exported PyTorch program (.pt2): a zip file of records, read by name. Its bytes
// come from anywhere: no size is believed that the file itself cannot hold, and nothing is
// unpickled.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace nns::trace::import {

class Archive {
 public:
  // Opens what torch.export.save wrote, or throws: a usage Error if there is no such file, a state
  // Error if it is cut short, of another kind or of an unknown version.
  explicit Archive(const std::string& path);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  const std::string& path() const { return path_; }
  bool has(const std::string& record) const;
  // Bytes of a record, or a state Error if it is not there or larger than the file.
  size_t size(const std::string& record) const;
  std::string read(const std::string& record) const;
  // Reads a record of `size` bytes to `to`.
  void read_to(const std::string& record, void* to, size_t size) const;

  // Throws a state Error: "'m.pt2' …".
  [[noreturn]] void refuse(std::string_view what, const char* hint = "") const;

 private:
  std::string path_;
  size_t file_size_ = 0;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

}  // namespace nns::trace::import
