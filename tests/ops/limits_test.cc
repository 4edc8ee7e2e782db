// SPDX-License-Identifier: Apache-2.0
// The probes measure something within the bounds of any machine, on every path.
#include "ops/limits.h"

#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

TEST(Limits, AreThoseOfAMachine) {
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 1);
    LimitProbe probe(backend);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const double flops = probe.measure_matrix_flops(dtype, 0.002);
      EXPECT_GT(flops, 1e8);
      EXPECT_LT(flops, 1e13);
    }
  }
  CpuBackend backend(CpuPath::kReference, 1);
  LimitProbe probe(backend);
  const double bandwidth = probe.measure_read_bandwidth();
  EXPECT_GT(bandwidth, 1e8);
  EXPECT_LT(bandwidth, 1e13);
}

}  // namespace
}  // namespace strata::ops
