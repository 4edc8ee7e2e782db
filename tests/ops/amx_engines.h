// SPDX-License-Identifier: Apache-2.0
// The engines of attention of the path amx that this machine can run, which have equal bits; and
// data whose products leave the normal numbers.
#pragma once
#include <string>
#include <vector>

#include "ops/cpu/attention.h"
#include "ops/cpu/tiles.h"
#include "tests/ops/op_test.h"

namespace strata::ops::testing {

struct AmxEngine {
  std::string name;
  const cpu::AttentionKernels* kernels;
};

inline std::vector<AmxEngine> amx_engines() {
  std::vector<AmxEngine> engines;
#if defined(__x86_64__)
  if (cpu_path_supported(CpuPath::kAvx2)) engines.push_back({"avx2", &cpu::kAttentionAmxAvx2});
  if (!cpu_path_supported(CpuPath::kAvx512)) return engines;
  engines.push_back({"avx512", &cpu::kAttentionAmxAvx512});
  if (cpu::tiles_granted()) engines.push_back({"tiles", &cpu::kAttentionAmxTiles});
#endif
  return engines;
}

// Calls body(kernels) for every engine; their outputs have the same bits. Returns the first's.
template <typename Body>
std::vector<Buffer> run_on_engines(Body&& body) {
  std::vector<Buffer> want;
  for (const AmxEngine& engine : amx_engines()) {
    SCOPED_TRACE(engine.name);
    std::vector<Buffer> got = body(*engine.kernels);
    for (size_t i = 0; i < want.size(); ++i) expect_same_bits(got[i], want[i]);
    if (want.empty()) {
      for (const Buffer& x : got) want.push_back(x);
    }
  }
  return want;
}

// Normals whose exponents are spread from 2^-span to 1.
inline Buffer wide_buffer(DType dtype, const Shape& shape, uint64_t seed, int span) {
  Buffer buffer = random_buffer(dtype, shape, {.seed = seed});
  const Counter exponents{.seed = seed, .stream = 0x77696465};
  for (int64_t i = 0; i < buffer.size(); ++i) {
    const double part = exponents.uniform(static_cast<uint64_t>(i));
    buffer.set(i, std::ldexp(buffer.get(i), -static_cast<int>(part * span)));
  }
  return buffer;
}

}  // namespace strata::ops::testing
