// SPDX-License-Identifier: Apache-2.0
// Models with windows: the cache gives back what no layer will read again, and nothing else about a
// sample changes; a scaled embedding has the factor of the compute type.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine.h"
#include "engine/sampling/sampling_loop.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

std::unique_ptr<Engine> make(const std::string& name, DType dtype, const EngineOptions& options) {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), test_threads(2));
  auto model = model::load_model(
      *backend, std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + name + "/model",
      {.compute_dtype = dtype});
  return std::make_unique<Engine>(std::move(backend), std::move(model), options);
}

api::SampleRequest request(int prompt, int64_t max_tokens) {
  api::SampleRequest out;
  for (int i = 0; i < prompt; ++i) out.prompt.push_back((7 * i + 3) % 61);
  out.max_tokens = max_tokens;
  out.temperature = 0.8f;
  out.seed = 5;
  return out;
}

// All layers of mistral_window see 24 positions. A row holds the pages of these and of what a pass
// writes, whatever its length; a model with one full layer holds every page.
TEST(Windows, PagesBeforeEveryWindowGoBack) {
  constexpr int64_t kPage = 4;
  for (const auto& [name, frees] : {std::pair("mistral_window", true), {"ministral", false}}) {
    auto engine = make(name, DType::kF32, {.prefill_tokens = 8, .page_size = kPage});
    SamplingLoop loop(*engine);
    loop.add(request(100, 60));
    int64_t most = 0;
    while (!loop.done()) {
      loop.step();
      const KvPool& pool = engine->kv_pool();
      most = std::max(most, pool.num_pages() - pool.num_free());
    }
    if (frees) {
      EXPECT_LE(most, 24 / kPage + 8 / kPage + 2) << name;
    } else {
      EXPECT_EQ(most, (100 + 60) / kPage) << name;
    }
  }
}

TEST(Windows, PagesAndSharingMoveNoBit) {
  const auto sample = [](const EngineOptions& options, int num_rows) {
    auto engine = make("mistral_window", DType::kBF16, options);
    SamplingLoop loop(*engine);
    const api::SampleRequest asked = request(90, 50);
    const size_t group = loop.open_group(asked, nullptr);
    std::vector<size_t> rows;
    for (int i = 0; i < num_rows; ++i) rows.push_back(loop.add_row(group, asked.seed));
    loop.close_group(group);
    while (!loop.done()) loop.step();
    std::vector<api::SampleResult> results;
    for (const size_t row : rows) results.push_back(loop.take_result(row));
    EXPECT_EQ(engine->kv_pool().num_pages(), engine->kv_pool().num_free());
    return results;
  };
  const api::SampleResult want = sample({}, 1)[0];
  for (const int64_t page : {1, 7, 64}) {
    for (const int64_t chunk : {5, 64}) {
      for (const auto& got : sample({.prefill_tokens = chunk, .page_size = page}, 3)) {
        EXPECT_EQ(got.tokens, want.tokens) << page << " " << chunk;
        EXPECT_EQ(got.logprobs, want.logprobs) << page << " " << chunk;
      }
    }
  }
}

// hidden_states[0] = bf16(bf16(E[id]) bf16(sqrt(24))): 4.8990 is 4.90625 in bf16.
TEST(Windows, TheEmbeddingsFactorIsRoundedToTheComputeType) {
  auto engine = make("gemma3", DType::kBF16, {});
  const model::ModelWeights& weights = *engine->model().weights;
  const int64_t width = engine->config().hidden_size;
  ASSERT_EQ(width, 24);
  Tensor table(cpu_allocator(), DType::kF32, {engine->config().vocab_size, width});
  weights.read_rows(engine->backend(), weights.embedding_index(), 0, table);
  api::Batch batch;
  batch.want_hidden_states = true;
  batch.want_loss = false;
  api::Datum datum;
  for (int32_t id = 0; id < 40; ++id) datum.tokens.push_back(id);
  batch.sequences.push_back({.datum = &datum});
  api::TensorSink sink;
  run_batch(*engine, batch, &sink);
  const std::vector<float>& states = sink.at("hidden_states").values;
  const HostAccess access(cpu_allocator());
  for (int64_t i = 0; i < 40 * width; ++i) {
    const float want = round_to_bf16(table.view().f32()[i] * 4.90625f);
    ASSERT_EQ(states[static_cast<size_t>(i)], want) << i;
  }
}

}  // namespace
}  // namespace strata::engine
