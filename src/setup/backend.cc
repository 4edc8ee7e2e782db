// SPDX-License-Identifier: Apache-2.0
#include "setup/backend.h"

#include <fmt/format.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/limits.h"

namespace strata::apps {

std::unique_ptr<Backend> make_backend(int threads) {
  return std::make_unique<CpuBackend>(choose_cpu_path(), threads);
}

std::string_view arithmetic_in_use() { return cpu_path_name(choose_cpu_path()); }

std::string describe_arithmetic_in_use() { return describe_cpu_path(choose_cpu_path()); }

std::string find_faster_arithmetic(DType dtype, int threads) {
  const CpuPath in_use = choose_cpu_path();
  double best_flops = 0, own_flops = 0;
  std::string best;
  for (const CpuPath path : fast_cpu_paths()) {
    CpuBackend backend(path, threads);
    const double flops = ops::LimitProbe(backend).measure_matrix_flops(dtype, 0.1);
    if (path == in_use) own_flops = flops;
    if (flops > best_flops) {
      best_flops = flops;
      best = cpu_path_name(path);
    }
  }
  if (own_flops == 0 || best_flops < 1.1 * own_flops) return "";
  return fmt::format("{} multiplies {:.1f} times as fast as {} here: STRATA_CPU_PATH={}", best,
                     best_flops / own_flops, cpu_path_name(in_use), best);
}

}  // namespace strata::apps
