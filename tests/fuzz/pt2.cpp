// The JSON of an exported program for libFuzzer: the program, a NUL, then what says where its
// weights lie. The archive around them is one in memory, whose other records are all alike.
#include "base/error.h"
#include "trace/import/archive.h"
#include "trace/import/program.h"

namespace caffe2::serialize {
class PyTorchStreamReader {};
}  // namespace caffe2::serialize

namespace nns::trace::import {

namespace {
std::string_view model, weights;  // what is fuzzed
}  // namespace

Archive::Archive(const std::string& path) : path_(path) {}
Archive::~Archive() = default;
bool Archive::has(const std::string& record) const {
  return record == "models/model.json" || record.starts_with("data/");
}
size_t Archive::size(const std::string& record) const {
  return read(record).size();
}
std::string Archive::read(const std::string& record) const {
  if (record == "models/model.json") return std::string(model);
  if (record.ends_with("weights_config.json")) return std::string(weights);
  if (record.ends_with("constants_config.json")) return R"({"config": {}})";
  return std::string(65536, '\1');
}
void Archive::read_to(const std::string& record, void* to, size_t size) const {
  const std::string bytes = read(record);
  bytes.copy(static_cast<char*>(to), size);
}
void Archive::refuse(std::string_view what, const char* hint) const {
  throw Error(ErrorKind::state, fmt::format("[import.file] '{}' {}", path_, what), hint);
}

}  // namespace nns::trace::import

using namespace nns;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(bytes.find('\0'), size);
  trace::import::model = bytes.substr(0, cut);
  trace::import::weights = bytes.substr(std::min(cut + 1, size));
  try {
    trace::import::read_program(trace::import::Archive("x.pt2"));
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::internal) throw;
  }
  return 0;
}
