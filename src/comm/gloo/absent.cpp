// Stands for the gloo back end in a build that found no declarations of Gloo.
#include "base/error.h"
#include "comm/backend.h"

namespace nns::comm {

std::string gloo_problem() {
  return "this build has no gloo back end";
}

std::shared_ptr<Communicator> connect_gloo(const Launch&, const ConnectOptions&) {
  throw Error(ErrorKind::communication, "[comm.gloo] " + gloo_problem(),
              "install libgloo-dev and build again");
}

}  // namespace nns::comm
