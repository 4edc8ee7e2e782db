// SPDX-License-Identifier: Apache-2.0
// That the protected memory protects: without these the runs on it would show nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "backend/arena.h"
#include "ops/elementwise.h"
#include "tests/base/sanitizer.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

// Sanitizers catch the signal, report it and exit.
#ifdef STRATA_SANITIZED
#define EXPECT_NO_ACCESS(statement) EXPECT_DEATH(statement, "SEGV")
#else
#define EXPECT_NO_ACCESS(statement) EXPECT_EXIT(statement, testing::KilledBySignal(SIGSEGV), "")
#endif

TEST(ProtectedMemory, OpensForHostAccessAlone) {
  const Tensor tensor(cpu_allocator(), DType::kF32, {3});
  {
    const HostAccess outer(cpu_allocator());
    {
      const HostAccess inner(cpu_allocator());
    }
    tensor.view().f32()[2] = 5.0f;
    const Tensor second(cpu_allocator(), DType::kF32, {1 << 20});  // taken while it is open
    EXPECT_EQ(second.view().f32()[(1 << 20) - 1], 0.0f);
  }
  EXPECT_NO_ACCESS(tensor.view().f32()[2] = 6.0f);
  const HostAccess access(cpu_allocator());
  EXPECT_EQ(tensor.view().f32()[2], 5.0f);
}

// One read of an adapter's gradient above ops, after a real step of training.
TEST(ProtectedMemory, OneReadAboveOpsIsFatal) {
  auto engine = tiny_engine({.dtype = DType::kBF16});
  const api::AdapterSlot slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
  api::Batch batch;
  batch.gradients = api::Gradients::kAdapters;
  batch.sequences.push_back(tiny_sequence(*engine, 12, 5, slot));
  run_batch(*engine, batch);
  const TensorView gradients = engine->adapter(slot).gradients();
  float value = 0.0f;
  EXPECT_NO_ACCESS(value = gradients.f32()[0]);
  std::vector<float> values(static_cast<size_t>(gradients.shape.num_elements()));
  ops::to_host(engine->backend(), gradients, values);
  value = *std::max_element(values.begin(), values.end());
  EXPECT_GT(value, 0.0f);
}

}  // namespace
}  // namespace strata::engine
