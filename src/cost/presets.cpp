// Figures of known machines, each with its source. Peaks are those of data sheets, dense and
// without TF32, which LibTorch does not use for 32-bit products unless told; the share of a peak
// that large calls reach is stated beside them.
#include "cost/presets.h"

namespace nns::cost {
namespace {

// 4 us: a kernel launch and its gaps on a GPU, as profiles of LibTorch show.
constexpr double kStart = 4e-6;
// Products of 8192² in bfloat16 reach about 0.7 of the peak (cuBLAS on A100 and H100: MLPerf and
// Dao 2023 report 0.65–0.75); copies 0.85 of the memory's (BabelStream on A100: 0.87).
constexpr double kProducts = 0.7, kMemory = 0.85;
// Of a link's one-way bandwidth, collectives of large messages reach about 0.8: nccl-tests on 8 ×
// H100 show an all-reduce "busbw" of 360–370 of 450 GB/s.
constexpr double kLink = 0.8;

double half_of(int processors) {  // tiles of 128 × 128, one a processor: half a wave
  return 0.5 * 128 * 128 * processors;
}

// 20 us to start a collective and 1 us a hop: NCCL's latencies of small all-reduces on 8 GPUs.
LinkCosts links(double inside, double across) {
  return {.call = 20e-6,
          .latency = 1e-6,
          .seconds_per_byte = 1 / (inside * kLink),
          .across_nodes = inside / across,
          .devices_per_node = 8};
}

Hardware gpu(const char* name, int64_t memory, double bandwidth, int processors, double bf16,
             double f32, double f64, LinkCosts links) {
  return {.name = name,
          .memory = memory,
          .memory_bandwidth = bandwidth,
          .flops = {{DType::bf16, bf16}, {DType::f16, bf16}, {DType::f32, f32}, {DType::f64, f64}},
          .start = kStart,
          .half_filled = half_of(processors),
          .product_efficiency = kProducts,
          .memory_efficiency = kMemory,
          .links = links};
}

}  // namespace

const std::vector<Hardware>& presets() {
  static const std::vector<Hardware> all = {
      // NVIDIA A100 data sheet (2021): SXM 40 GB 1,555 GB/s, 80 GB 2,039 GB/s, 312 TFLOPS of 16
      // bits, 19.5 of 32 (FP64 on vector units 9.7), 108 SMs; NVLink 3: 600 GB/s both ways; DGX
      // A100: a 200 Gb/s adapter a GPU. 42,506,321,920 bytes are what CUDA reports of the 40 GB.
      gpu("a100-40", 42506321920, 1.555e12, 108, 312e12, 19.5e12, 9.7e12, links(300e9, 25e9)),
      gpu("a100-80", 80000000000, 2.039e12, 108, 312e12, 19.5e12, 9.7e12, links(300e9, 25e9)),
      // NVIDIA H100 data sheet (2023), SXM: 989 TFLOPS of 16 bits, 67 of 32, 34 of 64, 3.35 TB/s,
      // 80 GB, 132 SMs; NVLink 4: 900 GB/s both ways; DGX H100: a 400 Gb/s adapter a GPU.
      gpu("h100", 80000000000, 3.35e12, 132, 989e12, 67e12, 34e12, links(450e9, 50e9)),
      // NVIDIA H200 data sheet (2024): as H100 with 141 GB at 4.8 TB/s.
      gpu("h200", 141000000000, 4.8e12, 132, 989e12, 67e12, 34e12, links(450e9, 50e9)),
      // NVIDIA DGX B200 data sheet (2024), an eighth each: 36 PFLOPS of 16 bits with sparsity (18
      // dense), 600 TFLOPS of 32, 296 of 64, 1,440 GB at 64 TB/s; NVLink 5: 1.8 TB/s both ways;
      // a 400 Gb/s adapter a GPU. 148 SMs.
      gpu("b200", 180000000000, 8e12, 148, 2250e12, 75e12, 37e12, links(900e9, 50e9)),
      // AMD MI300X data sheet (2023): 1307.4 TFLOPS of 16 bits, 163.4 of 32 (matrix units), 81.7
      // of 64, 5.3 TB/s, 192 GB, 304 CUs; seven xGMI links of 64 GB/s one way; a 400 Gb/s adapter.
      gpu("mi300x", 192000000000, 5.3e12, 304, 1307.4e12, 163.4e12, 81.7e12, links(448e9, 50e9)),
      // A rank of one CPU thread with AVX2 at 3 GHz: 2 units × 8 floats × 2 = 96 GFLOPS of 32 bits,
      // 16-bit types by way of 32; 12 GB/s of a shared DDR4 channel. Ranks are threads or processes
      // of one host; TCP over 10 Gb/s Ethernet between hosts.
      {.name = "cpu",
       .memory = 8000000000,
       .memory_bandwidth = 12e9,
       .flops = {{DType::bf16, 96e9}, {DType::f16, 96e9}, {DType::f32, 96e9}, {DType::f64, 48e9}},
       .start = 2e-6,
       .half_filled = 256,
       .product_efficiency = 0.7,
       .memory_efficiency = 0.8,
       .links = {.call = 30e-6,
                 .latency = 5e-6,
                 .seconds_per_byte = 1 / 3e9,
                 .across_nodes = 3e9 / 1.25e9,
                 .devices_per_node = 8}},
  };
  return all;
}

}  // namespace nns::cost
