// SPDX-License-Identifier: Apache-2.0
#include "setup/backend.h"

#include "ops/cpu/cpu_backend.h"

namespace strata::apps {

std::unique_ptr<Backend> make_backend(int threads) {
  return std::make_unique<CpuBackend>(choose_cpu_path(), threads);
}

std::string_view arithmetic_in_use() { return cpu_path_name(choose_cpu_path()); }

std::string describe_arithmetic_in_use() { return describe_cpu_path(choose_cpu_path()); }

}  // namespace strata::apps
