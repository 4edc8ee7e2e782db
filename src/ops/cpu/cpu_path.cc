// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/env.h"
#include "base/error.h"

namespace strata {
namespace {
constexpr CpuPath kPaths[] = {CpuPath::kAvx512Bf16, CpuPath::kAvx512, CpuPath::kAvx2,
                              CpuPath::kReference};
}

std::string_view cpu_path_name(CpuPath path) {
  switch (path) {
    case CpuPath::kAvx512Bf16:
      return "avx512_bf16";
    case CpuPath::kAvx512:
      return "avx512";
    case CpuPath::kAvx2:
      return "avx2";
    case CpuPath::kReference:
      return "reference";
  }
  return "?";
}

bool cpu_path_supported(CpuPath path) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  switch (path) {
    case CpuPath::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
    case CpuPath::kAvx512:
      return avx512;
    case CpuPath::kAvx2:
      return avx2;
    case CpuPath::kReference:
      return true;
  }
#endif
  return path == CpuPath::kReference;
}

namespace {

CpuPath path_named(const std::string& name) {
  const CpuPath* path = std::ranges::find(kPaths, name, cpu_path_name);
  if (path == std::end(kPaths)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("STRATA_CPU_PATH: got '{}', want avx512_bf16, avx512, avx2 or reference",
                    name));
  }
  return *path;
}

void check_supported(CpuPath path, CpuPath best) {
  if (cpu_path_supported(path)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("STRATA_CPU_PATH: this CPU cannot run '{}'; unset it to use '{}'",
                          cpu_path_name(path), cpu_path_name(best)));
}

}  // namespace

CpuPath choose_cpu_path() {
  const std::string wanted = env_cpu_path();
  const CpuPath best = *std::ranges::find_if(kPaths, cpu_path_supported);
  if (wanted.empty()) return best;
  const CpuPath path = path_named(wanted);
  check_supported(path, best);
  return path;
}

}  // namespace strata
