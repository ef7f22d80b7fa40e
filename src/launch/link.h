// A rank's link to the hub of the watch: a thread, without Lua and MPI, that sends beats, hears
// when others fail, and ends the process then: a collective that waits for a lost rank never
// returns.
#pragma once

#include <memory>

#include "base/error.h"
#include "launch/wire.h"

namespace nns::launch {

// Watches this process as one of the ranks; done once. Call limits as comm.timeout_s.
void watch(const Endpoint& endpoint, int rank, int size);
// The same with a hub in a thread of this process; what the other ranks are to be told.
Endpoint host_watch(int rank, int size, double beat_s);
bool is_watched();
// An operation that takes longer is a failure.
void limit_calls(double seconds);

// This rank has failed. Prints by `report` if it is the first, else one line; ends the process.
// Returns only when nobody watches, or the common end is behind.
void leave_failed(const Error& error, void (*report)(const Error&));
// The common end, after a barrier: from here on ranks may go.
void finish();

}  // namespace nns::launch
