// What a back end that moves bytes between processes offers: messages, and operations made of them.
#pragma once

#include <cstdint>

namespace nns::comm {

// An operation of several rounds.
class Operation {
 public:
  virtual ~Operation() = default;
  // Goes on as far as messages allow; true when all is done. Whether it waits for messages is up to
  // the back end: then it gives true in the end.
  virtual bool step() = 0;
};

// Messages between members of a group that are posted together: done when all have come and gone,
// and empty again. The bytes (> 0) stay with the caller until then. Messages of one tag from one
// member to another come in the order in which they went.
class Batch : public Operation {
 public:
  virtual void send(const void* data, int64_t bytes, int peer, int tag) = 0;
  virtual void recv(void* data, int64_t bytes, int peer, int tag) = 0;
};

}  // namespace nns::comm
