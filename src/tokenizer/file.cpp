// Which kind of tokenizer a path holds. SentencePiece is a library of its own beside ours, opened
// at its first use: a program without such models needs none of it.
#include <filesystem>

#include "base/error.h"
#include "base/mapped.h"
#include "base/plugin.h"
#include "tokenizer/sentencepiece.h"

namespace nns::tokenizer {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path) {
  const auto plugin = open_plugin(kSentencePieceLibrary, kSentencePieceFunction);
  if (plugin.function == nullptr)
    throw Error(
        ErrorKind::usage,
        fmt::format("[tokenizer.read] '{}' is a SentencePiece model, for which this program "
                    "has no library: {}",
                    path, plugin.error),
        "install libsentencepiece-dev and build again, or give a tokenizer.json");
  const MappedFile file(path, "tokenizer.read");
  std::shared_ptr<const Tokenizer> out;
  reinterpret_cast<OpenSentencePiece*>(plugin.function)(file.bytes(), path, out);
  return out;
}

}  // namespace

std::string find_file(const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::is_regular_file(fs::path(path) / name, ec)) return (fs::path(path) / name).string();
  fail(ErrorKind::usage,
       "[tokenizer.read] the folder '{}' has no tokenizer.json and no tokenizer.model", path);
}

std::shared_ptr<const Tokenizer> open_file(const std::string& path) {
  const std::string name = find_file(path);
  if (name.ends_with(".model")) return open_sentencepiece(name);
  return read_json(MappedFile(name, "tokenizer.read").bytes(), name);
}

}  // namespace nns::tokenizer
