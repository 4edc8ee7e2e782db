// SPDX-License-Identifier: Apache-2.0
// What the works of `strata bench` run on.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/batch.h"
#include "engine/engine.h"

namespace strata::apps {

// A model, or a stage of it, whose weights are small, random and cheap to make: a hash of the
// element's index, uniform in +-0.035 (deviation 0.02). `weights`: "bf16", "auto", or a form of few
// bits (q4_0) of random codes, whose scales make about as much of them.
std::unique_ptr<engine::Engine> make_random_engine(
    std::unique_ptr<Backend> backend, const model::ModelConfig& config, DType dtype,
    const std::string& weights, const engine::EngineOptions& options,
    std::optional<model::LayerRange> part = {}, model::WeightShare share = {},
    const model::TensorShare& tensor = {}, const model::ExpertShare& expert = {});
// "q4_0, q4_1, ...": the forms that --weights takes.
std::string narrow_form_names();
// --weights of a random model where so much trains: throws Error for few bits that would.
std::string checked_random_weights(const std::string& weights, const std::string& method);

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t stream);

// The modules of the adapters that train or are sampled with.
std::vector<model::LoraModuleSpec> bench_modules(const model::ModelConfig& config);
// So many sequences of random tokens, whose loss trains the slot's adapter, or of kBase all
// parameters.
struct TrainingBatch {
  std::vector<api::Datum> data;
  api::Batch batch;  // of them
};
TrainingBatch random_batch(int64_t sequences, int64_t length, int64_t vocab, api::AdapterSlot slot);

}  // namespace strata::apps
