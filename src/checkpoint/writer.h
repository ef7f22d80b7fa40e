// Writes checkpoints: safetensors files, the trainer's state and the manifest that maps logical
// tensors to slices in files.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/task.h"

namespace nns::checkpoint {

// Version 2 has tensors whose slices stand in several files, one or more a rank; where every tensor
// is whole the folder is of version 1.
inline constexpr int kFormatVersion = 2;

// One tensor of one file: a slice of a weight (state empty) or of a state of the optimizer.
struct Piece {
  std::string file, parameter, state;
  std::string kind;                       // parameter, buffer
  std::string key;                        // its name in the file; that of key_of where empty
  at::Tensor data;                        // on any device, any strides
  Shape full;                             // shape of the logical tensor
  std::vector<safetensors::Range> slice;  // of it, one range a dimension
};

struct Request {
  std::string save_dir;
  int64_t epoch = 0, step = 0;
  std::vector<Piece> pieces;
  std::vector<std::pair<std::string, std::string>> aliases;  // tied name, name it is stored under
  std::string state;                                         // JSON
  std::vector<std::string> pointers;                         // what moves to this checkpoint
  bool copy_pointers = false;                                // copies of it, not links
  int64_t keep = 0;                                          // 0 keeps all
};

// The name of a piece in its file: "wte.weight", "wte.weight/exp_avg".
std::string key_of(const Piece& piece);

// Writes the files of these pieces into a folder and syncs them. Returns what was written as JSON,
// for `finish`. Gives up with a state Error once `stop`, if any, is set.
std::string write_pieces(const std::string& folder, std::vector<Piece> pieces,
                         const std::atomic<bool>* stop = nullptr);

// Ends a checkpoint whose files ranks have written into the draft, whatever request.pieces are:
// writes state and manifest, commits, moves the pointers, then prunes. Weights stand in `order`
// where it names them, else as they were told. Returns the path of the checkpoint.
std::string finish(Draft& draft, const Request& request, const std::vector<std::string>& written,
                   const std::vector<std::string>& order);

// Writes, makes durable, moves the pointers, then prunes. Returns the path of the checkpoint, or
// throws a state Error after which all earlier checkpoints and pointers are as they were.
std::string write(const Request& request);

// Tensors that are copied in small parts, by all threads that are at it.
class Copies {
 public:
  void add(const at::Tensor& from, const at::Tensor& to);  // dense ones on the CPU
  // Copies what no thread has begun; returns when all is copied.
  void run();

 private:
  struct Part {
    const char* from;
    char* to;
    size_t bytes;
  };
  std::vector<at::Tensor> tensors_;
  std::vector<Part> parts_;
  std::atomic<size_t> begun_{0}, done_{0};
};

// Copies of tensors in the memory of the host, to be written while the tensors change. Their memory
// stays for the next copies.
class Snapshot {
 public:
  // Takes memory for copies of such pieces, and has a thread touch it: pages that nobody has used
  // yet may cost twenty times as much as copying into others.
  void reserve(const std::vector<Piece>& pieces);
  // Returns the pieces with copies for data, and what has yet to fill them: nothing of buffers,
  // which change in every forward. What was taken before must be written by now.
  std::pair<std::vector<Piece>, std::shared_ptr<Copies>> take(std::vector<Piece> pieces);
  // Takes part in the copying of what was taken last, to its end: its tensors may change then.
  void settle();

 private:
  at::Tensor& room(size_t piece, const at::Tensor& data);

  std::vector<at::Tensor> held_;
  std::shared_ptr<Copies> copies_;
  std::unique_ptr<Task> touching_;
};

}  // namespace nns::checkpoint
