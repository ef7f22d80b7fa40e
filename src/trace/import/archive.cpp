#include "trace/import/archive.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/export/pt2_archive_constants.h>

#include <filesystem>

#include "base/error.h"

namespace nns::trace::import {
namespace {

namespace spec = torch::_export::archive_spec;

constexpr const char* kWrittenBy = "write it with torch.export.save (PyTorch 2.11 or newer)";

// A record of at most a few bytes, which says what the file is.
std::string word(const Archive& archive, std::string_view record) {
  constexpr size_t kLongest = 64;
  const std::string name(record);
  if (!archive.has(name) || archive.size(name) > kLongest) return "";
  std::string text = archive.read(name);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

Archive::Archive(const std::string& path) : path_(path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::is_regular_file(status))
    fail(ErrorKind::usage, "[import.file] cannot read '{}': {}; expected a .pt2 file", path,
         std::filesystem::exists(status) ? "not a file" : "no such file");
  file_size_ = std::filesystem::file_size(path, error);
  try {
    reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path);
  } catch (const std::exception&) {
    refuse("is no archive of PyTorch, or cut short", kWrittenBy);
  }
  const std::string format = word(*this, spec::ARCHIVE_FORMAT_PATH);
  if (format != spec::ARCHIVE_FORMAT_VALUE)
    refuse(format.empty() && has("serialized_exported_program.json")
               ? "was exported by an old PyTorch, which pickles weights"
               : "is an archive of another kind: it holds no exported program",
           kWrittenBy);
  const std::string version = word(*this, spec::ARCHIVE_VERSION_PATH);
  if (version != spec::ARCHIVE_VERSION_VALUE)
    refuse(fmt::format("is an archive of version '{}'; expected {}", version,
                       spec::ARCHIVE_VERSION_VALUE),
           "export the model with a PyTorch that this program knows");
  const std::string order = word(*this, "byteorder");
  if (!order.empty() && order != "little")
    refuse(fmt::format("holds weights in {}-endian order; expected little", order));
}

Archive::~Archive() = default;

void Archive::refuse(std::string_view what, const char* hint) const {
  throw Error(ErrorKind::state, fmt::format("[import.file] '{}' {}", path_, what), hint);
}

bool Archive::has(const std::string& record) const {
  return reader_->hasRecord(record);
}

size_t Archive::size(const std::string& record) const {
  size_t size = 0;
  try {
    size = reader_->getRecordSize(record);
  } catch (const std::exception&) {
    refuse(fmt::format("has no record '{}', or it is damaged", record));
  }
  if (size > file_size_)
    refuse(fmt::format("is damaged: record '{}' is said to have {} bytes, the file has {}", record,
                       size, file_size_));
  return size;
}

std::string Archive::read(const std::string& record) const {
  std::string bytes(size(record), '\0');
  read_to(record, bytes.data(), bytes.size());
  return bytes;
}

void Archive::read_to(const std::string& record, void* to, size_t size) const {
  if (this->size(record) != size)
    refuse(fmt::format("is damaged: record '{}' has {} bytes; expected {}", record,
                       this->size(record), size));
  size_t read = 0;
  try {
    read = reader_->getRecord(record, to, size);
  } catch (const std::exception&) {
    refuse(fmt::format("is damaged: record '{}' cannot be read", record));
  }
  if (read != size) refuse(fmt::format("is damaged: record '{}' ends early", record));
}

}  // namespace nns::trace::import
