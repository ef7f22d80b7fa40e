#include "data/prepare.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/mapped.h"
#include "data/parquet.h"
#include "data/tokens.h"

namespace nns::data {
namespace {

constexpr const char* kArea = "data.prepare";

bool is_lines(const std::string& path) {
  return path.ends_with(".jsonl");
}

bool is_parquet(const std::string& path) {
  return path.ends_with(".parquet");
}

// Where the first line begins that starts at `at` or later.
int64_t line_from(std::string_view file, int64_t at) {
  if (at <= 0) return 0;
  const size_t end = file.find('\n', static_cast<size_t>(at) - 1);
  return static_cast<int64_t>(end == std::string_view::npos ? file.size() : end + 1);
}

}  // namespace

Preparation::Preparation(std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                         PrepareOptions options)
    : tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  for (size_t i = 0; i < options_.inputs.size(); ++i) {
    if (is_parquet(options_.inputs[i])) {
      cut_rows(i);
      continue;
    }
    const MappedFile file(options_.inputs[i], kArea);
    const auto size = static_cast<int64_t>(file.bytes().size());
    const int64_t step = is_lines(options_.inputs[i]) ? options_.piece_bytes : size;
    for (int64_t at = 0; at < size;) {
      const int64_t end = at + step >= size ? size : line_from(file.bytes(), at + step);
      add_piece({i, at, end, end - at});
      at = end;
    }
  }
}

void Preparation::add_piece(PreparedPiece piece) {
  piece.file = fmt::format("tokens-{:06}.bin", pieces_.size());
  bytes_in_all_ += piece.bytes;
  pieces_.push_back(std::move(piece));
}

void Preparation::cut_rows(size_t input) {
  const auto groups = open_parquet(options_.inputs[input], options_.field)->row_groups();
  PreparedPiece piece{input, 0, 0, 0};
  for (const int64_t bytes : groups) {
    piece.bytes += bytes;
    ++piece.end;
    if (piece.bytes < options_.piece_bytes) continue;
    add_piece(piece);
    piece = {input, piece.end, piece.end, 0};
  }
  if (piece.bytes > 0) add_piece(piece);
}

Preparation::~Preparation() {
  stop_ = true;
  for (auto& thread : threads_) thread.join();
}

void Preparation::start() {
  running_ = options_.threads;
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
}

bool Preparation::wait(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return running_ == 0; });
  if (running_ == 0 && error_) std::rethrow_exception(error_);
  return running_ == 0;
}

void Preparation::work() {
  std::exception_ptr error;
  try {
    for (size_t i = next_++; i < pieces_.size() && !stop_; i = next_++) write(pieces_[i]);
  } catch (...) {
    error = std::current_exception();
    stop_ = true;
  }
  const std::lock_guard lock(mutex_);
  if (error && !error_) error_ = error;
  --running_;
  changed_.notify_all();
}

void Preparation::add_document(const std::string& input, std::string_view text,
                               std::vector<int32_t>& ids) const {
  if (options_.bos >= 0) ids.push_back(options_.bos);
  try {
    tokenizer_->encode(text, {.special = false}, ids);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{} (in '{}')", e.message(), input), e.hint());
  }
  if (options_.eos >= 0) ids.push_back(options_.eos);
}

int64_t Preparation::add_lines(std::string_view file, const PreparedPiece& piece,
                               std::vector<int32_t>& ids) {
  int64_t documents = 0;
  for (int64_t at = piece.begin; at < piece.end && !stop_;) {
    const int64_t next = line_from(file, at + 1);
    std::string_view line = file.substr(static_cast<size_t>(at), static_cast<size_t>(next - at));
    const auto refuse = [&](const std::string& what) {
      fail(ErrorKind::data, "[{}] the line at byte {} of '{}' {}", kArea, at,
           options_.inputs[piece.input], what);
    };
    if (line.find_first_not_of(" \t\r\n") != std::string_view::npos) {
      nlohmann::json object;
      try {
        object = nlohmann::json::parse(line);
      } catch (const nlohmann::json::exception& e) {
        refuse(fmt::format("is not JSON: {}", e.what()));
      }
      if (!object.is_object()) refuse(fmt::format("is {}; expected an object", object.type_name()));
      const auto text = object.find(options_.field);
      if (text == object.end() || !text->is_string())
        refuse(fmt::format("has no text in its field '{}'", options_.field));
      add_document(options_.inputs[piece.input], text->get_ref<const std::string&>(), ids);
      ++documents;
    }
    bytes_done_ += next - at;
    at = next;
  }
  return documents;
}

int64_t Preparation::add_rows(const PreparedPiece& piece, std::vector<int32_t>& ids) {
  int64_t documents = 0;
  const std::string& input = options_.inputs[piece.input];
  open_parquet(input, options_.field)->read(piece.begin, piece.end, [&](std::string_view text) {
    add_document(input, text, ids);
    ++documents;
    return !stop_;
  });
  bytes_done_ += piece.bytes;
  return documents;
}

int64_t Preparation::add_documents(const PreparedPiece& piece, std::vector<int32_t>& ids) {
  const std::string& input = options_.inputs[piece.input];
  if (is_parquet(input)) return add_rows(piece, ids);
  const MappedFile file(input, kArea);
  if (static_cast<int64_t>(file.bytes().size()) < piece.end)
    fail(ErrorKind::data, "[{}] '{}' became shorter while it was read", kArea, input);
  if (is_lines(input)) return add_lines(file.bytes(), piece, ids);
  add_document(input, file.bytes(), ids);
  bytes_done_ += piece.bytes;
  return 1;
}

void Preparation::write(PreparedPiece& piece) {
  const std::string path = options_.out + "/" + piece.file;
  if (std::filesystem::exists(path)) {
    const TokenFile there = read_token_header(path);
    piece.documents = there.documents;
    piece.tokens = there.tokens;
    bytes_done_ += piece.bytes;
    return;
  }
  std::vector<int32_t> ids;
  const int64_t documents = add_documents(piece, ids);
  if (stop_) return;
  write_file_atomic(path, token_file_bytes(ids, tokenizer_->size() > 65536, documents), kArea);
  piece.documents = documents;
  piece.tokens = static_cast<int64_t>(ids.size());
}

}  // namespace nns::data
