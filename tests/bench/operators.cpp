// The floor of a host cost: LibTorch's own operators called from C++ on 8×8 tensors, without
// autograd. host.py compiles and runs it. Prints microseconds of CPU, the least of many rounds.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/t.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

template <class F>
void measure(const char* name, F call) {
  double best = 1e9;
  for (int round = 0; round < 200; ++round) {
    const std::clock_t start = std::clock();
    for (int i = 0; i < 1000; ++i) call();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::printf("%s %.4f\n", name, best * 1e3);
}

int main() {
  const at::AutoDispatchBelowAutograd below;
  const at::Tensor x = at::full({8, 8}, 0.5), y = at::full({8, 8}, 0.25);
  measure("add", [&] { return at::add(x, y); });
  measure("mm", [&] { return at::mm(x, y); });
  measure("t", [&] { return at::t(x); });
}
