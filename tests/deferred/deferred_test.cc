// SPDX-License-Identifier: Apache-2.0
// That the deferred backend is late, and sees what is not awaited, staged or held: without these
// the runs on it would show nothing.
#include "tests/deferred/deferred.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/file_memory.h"
#include "ops/elementwise.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using deferred::Fault;

class Deferred : public testing::Test {
 protected:
  ~Deferred() override {
    deferred::plant(Fault::kNone);
    deferred::wait();
  }
  [[nodiscard]] std::vector<float> read(TensorView x) {
    std::vector<float> values(static_cast<size_t>(x.shape.num_elements()), -1.0f);
    ops::to_host(backend_, x, values);
    return values;
  }

  CpuBackend backend_{choose_cpu_path(), 2};
};

const std::vector<float> kThrees = {3.0f, 3.0f, 3.0f};

TEST_F(Deferred, RunsWhenSomeoneWaits) {
  const int64_t before = deferred::num_late();
  const Tensor x(cpu_allocator(), DType::kF32, {3});
  ops::fill(backend_, x, 3.0f);
  EXPECT_EQ(deferred::num_late(), before + 1);
  EXPECT_EQ(x.view().f32()[0], 0.0f) << "memory that is looked at past HostAccess: not yet";
  const HostAccess access(cpu_allocator());
  EXPECT_EQ(x.view().f32()[0], 3.0f);
}

TEST_F(Deferred, SeesACopyToTheHostThatIsNotAwaited) {
  const Tensor x(cpu_allocator(), DType::kF32, {3});
  ops::fill(backend_, x, 3.0f);
  deferred::plant(Fault::kCopyUnawaited);
  EXPECT_NE(read(x), kThrees);
  deferred::plant(Fault::kNone);
  EXPECT_EQ(read(x), kThrees);
}

TEST_F(Deferred, SeesHostAccessThatDoesNotWait) {
  const Tensor x(cpu_allocator(), DType::kF32, {3});
  const auto looked_at = [&] {
    ops::fill(backend_, x, 3.0f);
    const HostAccess access(cpu_allocator());
    return x.view().f32()[2];
  };
  deferred::plant(Fault::kAccessUnawaited);
  EXPECT_NE(looked_at(), 3.0f);
  deferred::plant(Fault::kNone);
  EXPECT_EQ(looked_at(), 3.0f);
}

TEST_F(Deferred, SeesANumberThatIsReturnedTooSoon) {
  const Tensor x(cpu_allocator(), DType::kF32, {3});
  ops::fill(backend_, x, 3.0f);
  deferred::plant(Fault::kNumberUnawaited);
  EXPECT_NE(ops::sum_of_squares(backend_, x), 27.0);
  deferred::plant(Fault::kNone);
  EXPECT_EQ(ops::sum_of_squares(backend_, x), 27.0);
}

TEST_F(Deferred, SeesAListOfTheHostThatIsNotStaged) {
  const Tensor x(cpu_allocator(), DType::kF32, {3});
  const auto copied = [&] {
    std::vector<float> list = kThrees;
    ops::from_host(backend_, list, x);
    list.assign(3, 7.0f);  // its owner's again as soon as the op has returned
    return read(x);
  };
  deferred::plant(Fault::kListUnstaged);
  EXPECT_NE(copied(), kThrees);
  deferred::plant(Fault::kNone);
  EXPECT_EQ(copied(), kThrees);
}

TEST_F(Deferred, SeesScratchThatIsReadAfterItWasGivenBack) {
  const Tensor y(cpu_allocator(), DType::kF32, {3});
  const auto copied = [&](bool too_late) {
    TensorView x;
    {
      const Scratch::Mark mark(backend_.scratch());
      x = backend_.scratch().take(DType::kF32, {3});
      ops::fill(backend_, x, 3.0f);
      if (!too_late) ops::copy(backend_, x, y);
    }
    if (too_late) ops::copy(backend_, x, y);
    return read(y);
  };
  EXPECT_TRUE(std::isnan(copied(true)[0]));
  EXPECT_EQ(copied(false), kThrees);
}

// What is written behind leaves when the work that was asked for before is done, and is back for
// what is asked for after it was read ahead; between the two nothing is there.
TEST_F(Deferred, SeesWhatIsWrittenBehindTooSoon) {
  FileAllocator files(testing::TempDir());
  const auto brought_back = [&](bool asked_for) {
    const Tensor x(files, DType::kF32, {3});
    const auto queue = backend_.page_queue("test", files);
    const PageRange range = {x.view().data, x.view().num_bytes()};
    ops::fill(backend_, x, 3.0f);
    queue->write_behind({&range, 1});
    if (asked_for) queue->read_ahead({&range, 1});
    return read(x);
  };
  EXPECT_TRUE(std::isnan(brought_back(false)[0]));
  deferred::plant(Fault::kWrittenTooSoon);
  EXPECT_NE(brought_back(true), kThrees);
  deferred::plant(Fault::kNone);
  EXPECT_EQ(brought_back(true), kThrees);
}

// The same of a whole pass, whose activations are written behind its forward.
TEST_F(Deferred, SeesActivationsThatAreWrittenBehindTooSoon) {
  const auto gradients = [&](const model::Recompute& recompute) {
    auto engine = tiny_engine({.options = {.recompute = recompute}});
    const api::AdapterSlot slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
    stir(*engine, slot);
    api::Batch batch;
    batch.gradients = api::Gradients::kAdapters;
    batch.sequences.push_back(tiny_sequence(*engine, 12, 5, slot));
    run_batch(*engine, batch);
    return copy_of(engine->adapter(slot).gradients());
  };
  const std::vector<std::string> tags = {std::string(model::kLayerInputTag)};
  const std::vector<float> wanted = gradients(model::Recompute::keeping(tags));
  EXPECT_EQ(gradients(model::Recompute::with_offload({}, tags)), wanted);
  deferred::plant(Fault::kWrittenTooSoon);
  EXPECT_NE(gradients(model::Recompute::with_offload({}, tags)), wanted);
}

// A step of training: many ops are late, and gradients are those of any other run.
TEST_F(Deferred, ATrainingPassIsLate) {
  auto engine = tiny_engine({.dtype = DType::kBF16});
  const api::AdapterSlot slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
  api::Batch batch;
  batch.gradients = api::Gradients::kAdapters;
  batch.sequences.push_back(tiny_sequence(*engine, 12, 5, slot));
  const int64_t before = deferred::num_late();
  run_batch(*engine, batch);
  EXPECT_GT(deferred::num_late(), before + 100);
  const std::vector<float> late = copy_of(engine->adapter(slot).gradients());
  double sum = 0.0;
  for (const float value : late) sum += std::abs(static_cast<double>(value));
  EXPECT_TRUE(std::isfinite(sum) && sum > 0.0) << sum;
}

}  // namespace
}  // namespace strata::engine
