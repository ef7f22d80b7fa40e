// The entry of libnnscaler_torch: registers the C++ modules that need LibTorch.
#include "tensor/modules.h"

extern "C" void nns_register_torch(lua_State* L) {
  nns::tensor::open(L);
  nns::trace::open(L);
  nns::comm::open(L);
  nns::runtime::open(L);
  nns::runtime::open_train(L);
  nns::checkpoint::open(L);
  nns::tokenizer::open(L);
  nns::data::open(L);
  nns::data::open_prepare(L);
  nns::data::open_workers(L);
}
