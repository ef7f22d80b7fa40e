// Texts to files of tokens, by several threads. The work is cut into pieces, each of which becomes
// one file, whole or not there at all: what an earlier start has written is kept. No LibTorch here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace nns::data {

struct PrepareOptions {
  // .jsonl: a document a line; .parquet: a document a row; else a document a file.
  std::vector<std::string> inputs;
  std::string out;             // folder that is there
  std::string field;           // of a JSON line, or the column, that holds the text
  int64_t piece_bytes = 0;     // of a .jsonl or .parquet file, about
  int32_t bos = -1, eos = -1;  // around each document; -1: none
  int threads = 1;
};

// What becomes one file: the lines of an input that begin in [begin, end), the row groups
// [begin, end) of a Parquet file, or the whole input.
struct PreparedPiece {
  size_t input = 0;
  int64_t begin = 0, end = 0;
  int64_t bytes = 0;                    // to read, as far as is known before
  std::string file = {};                // its name in the folder: "tokens-000000.bin"
  int64_t documents = -1, tokens = -1;  // once it is done
};

class Preparation {
 public:
  // Cuts the inputs into pieces; throws a usage Error for one that cannot be read.
  Preparation(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, PrepareOptions options);
  ~Preparation();
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // Starts the threads.
  void start();
  // Waits until all is done, or for so many seconds; returns whether all is done. Throws what went
  // wrong: a data Error that names file and line.
  bool wait(double seconds);
  int64_t bytes_done() const { return bytes_done_; }
  int64_t bytes_in_all() const { return bytes_in_all_; }
  // The pieces in order; complete when `wait` has returned true.
  const std::vector<PreparedPiece>& pieces() const { return pieces_; }

 private:
  void work();
  void write(PreparedPiece& piece);
  // `input` is for messages.
  void add_document(const std::string& input, std::string_view text,
                    std::vector<int32_t>& ids) const;
  void add_piece(PreparedPiece piece);
  void cut_rows(size_t input);
  // Add the documents of a piece and return how many; fewer where all is stopped.
  int64_t add_documents(const PreparedPiece& piece, std::vector<int32_t>& ids);
  int64_t add_lines(std::string_view file, const PreparedPiece& piece, std::vector<int32_t>& ids);
  int64_t add_rows(const PreparedPiece& piece, std::vector<int32_t>& ids);

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  PrepareOptions options_;
  std::vector<PreparedPiece> pieces_;
  int64_t bytes_in_all_ = 0;
  std::atomic<int64_t> bytes_done_ = 0;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // guards running_ and error_
  std::condition_variable changed_;
  int running_ = 0;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace nns::data
