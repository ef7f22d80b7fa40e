// Back ends that are libraries of their own, opened on demand: without them the program needs
// neither MPI nor CUDA to start.
#pragma once

#include "comm/backend.h"

namespace nns::comm {

// Why `library` beside this one cannot be opened, or "".
std::string problem_of(const char* library);

// Opens `library` beside this one and calls its `function`, which connects.
std::shared_ptr<Communicator> connect_by(const char* backend, const char* library,
                                         const char* function, const char* hint,
                                         const Launch& launch, const ConnectOptions& options);

using Connect = void(const Launch&, const ConnectOptions&, std::shared_ptr<Communicator>&);

}  // namespace nns::comm
