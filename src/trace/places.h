// Places: what the tensors of a traced model stand for. A script holds handles; several handles
// may be views of one storage. A graph has values only, so a write through any handle makes a new
// value of the storage's root, and the other views are taken anew from it when they are next read.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace nns::trace {

using graph::Arg;
using graph::NamedArg;

enum class StorageKind { fresh, input, parameter, buffer, constant };

// A call with one output that makes a view of its argument 0 (which is filled in when it is made).
struct ViewStep {
  std::string op;
  std::vector<NamedArg> args;
};

// How the result of a call shares memory with its first tensor.
struct Aliasing {
  enum class Kind {
    none,   // new memory
    view,   // certainly the same memory, seen through `step`
    maybe,  // a view or a copy, depending on strides; or a view that cannot be written through
  };
  Kind kind = Kind::none;
  ViewStep step;
};

// Returns how output `index` of the call shares memory with its first tensor argument.
// `contiguous`: that tensor is known to be dense in row-major order. `identity`: the call returns
// it unchanged. `marked`: the schema says that the result is a view.
Aliasing aliasing_of(const std::string& op, const std::vector<NamedArg>& args, size_t index,
                     const TensorType& in, const std::vector<TensorType>& outs, bool contiguous,
                     bool identity, bool marked);

class Places {
 public:
  // Records a call with one output at the place in work; returns the value it makes.
  using Emit = std::function<int(const std::string& op, std::vector<NamedArg> args)>;
  using TypeOf = std::function<const TensorType&(int value)>;
  Places(Emit emit, TypeOf type_of) : emit_(std::move(emit)), type_of_(std::move(type_of)) {}

  // New handle of a new storage that holds `value`.
  int add(StorageKind kind, std::string name, int value, bool contiguous);
  // New handle that is `step` of handle `parent`; `value` is what the step makes now.
  int add_view(int parent, ViewStep step, int value, bool contiguous);
  // Says that two handles may or may not share memory: a write to one makes the other unreadable.
  void may_share(int a, int b);

  // Returns the value a handle stands for now. Throws a model Error where that is unknown.
  int read(int handle);
  // Makes `value` the content of a handle, and of the part of its storage that it shows. `site`
  // names the write in later errors.
  void write(int handle, int value, const std::string& site);
  // Throws a model Error that names what cannot be written and why, if a handle must not be.
  void check_writable(int handle, const std::string& op) const;

  bool contiguous(int handle) const { return handles_[at(handle)].contiguous; }
  StorageKind kind(int handle) const { return storage(handle).kind; }
  const std::string& name(int handle) const { return storage(handle).name; }
  bool written(int handle) const { return storage(handle).version > 0; }

 private:
  struct Storage {
    StorageKind kind;
    std::string name;
    int version = 0;
    std::vector<int> relatives;  // storages that may share its memory
    std::string lost;            // site of a write that may or may not have changed it
  };
  struct Handle {
    int storage = 0;
    int parent = -1;
    ViewStep step;
    int value = 0, version = 0;  // value was right at that version of the storage
    bool contiguous = false;
  };
  static size_t at(int index) { return static_cast<size_t>(index); }
  const Storage& storage(int handle) const { return storages_[at(handles_[at(handle)].storage)]; }
  int scatter(const ViewStep& step, int base, int value);

  Emit emit_;
  TypeOf type_of_;
  std::vector<Storage> storages_;
  std::vector<Handle> handles_;
};

}  // namespace nns::trace
