// The entry of libnnscaler_sentencepiece.so, which file.cpp opens.
#pragma once

#include "tokenizer/tokenizer.h"

namespace nns::tokenizer {

inline constexpr const char* kSentencePieceLibrary = "libnnscaler_sentencepiece.so";
inline constexpr const char* kSentencePieceFunction = "nns_open_sentencepiece";
// Reads the bytes of a model; `path` is for messages.
using OpenSentencePiece = void(std::string_view bytes, const std::string& path,
                               std::shared_ptr<const Tokenizer>& out);

}  // namespace nns::tokenizer
