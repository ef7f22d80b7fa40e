// SentencePiece models, by Debian's library.
#include "tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <unordered_map>

#include "base/error.h"

namespace nns::tokenizer {
namespace {

class SentencePiece : public Tokenizer {
 public:
  SentencePiece(std::string_view bytes, const std::string& path) {
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok())
      fail(ErrorKind::data, "[tokenizer.read] '{}' is not a SentencePiece model: {}", path,
           status.ToString());
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      names_.emplace(processor_.IdToPiece(id), id);
  }

  int64_t size() const override { return processor_.GetPieceSize(); }
  void encode(std::string_view text, const EncodeOptions& options,
              std::vector<int32_t>& ids) const override {
    std::vector<int> found;
    const auto status = processor_.Encode(text, &found);
    if (!status.ok()) fail(ErrorKind::data, "[tokenizer.encode] {}", status.ToString());
    if (options.special && processor_.bos_id() >= 0) ids.push_back(processor_.bos_id());
    ids.insert(ids.end(), found.begin(), found.end());
  }
  std::string decode(const std::vector<int64_t>& ids) const override {
    std::vector<int> list;
    for (const int64_t id : ids) {
      if (id < 0 || id >= size())
        fail(ErrorKind::data, "[tokenizer.decode] id {} is outside the vocabulary of {}", id,
             size());
      if (!processor_.IsControl(static_cast<int>(id))) list.push_back(static_cast<int>(id));
    }
    std::string out;
    const auto status = processor_.Decode(list, &out);
    if (!status.ok()) fail(ErrorKind::data, "[tokenizer.decode] {}", status.ToString());
    return out;
  }
  std::optional<int32_t> id_of(const std::string& token) const override {
    const auto found = names_.find(token);
    if (found == names_.end()) return {};
    return found->second;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::unordered_map<std::string, int32_t> names_;
};

}  // namespace
}  // namespace nns::tokenizer

extern "C" void nns_open_sentencepiece(std::string_view bytes, const std::string& path,
                                       std::shared_ptr<const nns::tokenizer::Tokenizer>& out) {
  out = std::make_shared<const nns::tokenizer::SentencePiece>(bytes, path);
}
