// SPDX-License-Identifier: Apache-2.0
#include "planner/limits.h"

#include <algorithm>

namespace strata::planner {
namespace {

constexpr int kProbes = 3;
constexpr double kProbeSeconds = 0.01;

}  // namespace

engine::MachineLimits probe_limits(ops::LimitProbe& probe, DType dtype) {
  engine::MachineLimits limits = {
      .flops = 0.0, .f32_flops = 0.0, .bytes = 0.0, .source = "probed now"};
  for (int i = 0; i < kProbes; ++i) {
    limits.flops = std::max(limits.flops, probe.measure_matrix_flops(dtype, kProbeSeconds));
    limits.f32_flops =
        dtype == DType::kF32
            ? limits.flops
            : std::max(limits.f32_flops, probe.measure_matrix_flops(DType::kF32, kProbeSeconds));
    limits.bytes = std::max(limits.bytes, probe.measure_read_bandwidth());
  }
  return limits;
}

engine::MachineLimits probe_limits(Backend& backend, DType dtype, int64_t most_bytes) {
  ops::LimitProbe probe(backend, std::min(most_bytes, ops::LimitProbe::kReadBytes));
  return probe_limits(probe, dtype);
}

}  // namespace strata::planner
