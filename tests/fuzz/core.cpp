// The targets of targets.h for libFuzzer; -DTARGET=safetensors, tokenizer, yaml or json.
#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nns::fuzz::TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
