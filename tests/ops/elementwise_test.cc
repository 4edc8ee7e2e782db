#include "ops/elementwise.h"

#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Elementwise, CopyConverts) {
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    Backend backend(path, 2);
    const Buffer x = random_buffer(DType::kF32, {3, 37}, {.seed = 1});
    Buffer y(DType::kBF16, {3, 37});
    copy(backend, x, y);
    std::vector<double> want;
    for (const double value : x.values()) {
      want.push_back(round_to_bf16(static_cast<float>(value)));
    }
    expect_close(y, want, 0);
  }
}

}  // namespace
}  // namespace strata::ops
