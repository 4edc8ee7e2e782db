// SPDX-License-Identifier: Apache-2.0
// TrainSampler: answers to --sample's prompts by what a run has learned so far, greedily, so that
// they can be compared from evaluation to evaluation. It takes no part in a run's results. Engine
// thread only.
#pragma once
#include <string>
#include <vector>

#include "engine/runner.h"
#include "setup/text_stack.h"

namespace strata::apps {

struct Sample {
  std::string prompt;
  std::string text;
};

class TrainSampler {
 public:
  static constexpr int64_t kMaxTokens = 64;  // of an answer

  // A prompt is a question where the model has a chat template, else a text to continue. Throws
  // Error for a prompt without tokens.
  TrainSampler(const ModelTexts& model, const TemplateChoice& chat,
               const std::vector<std::string>& prompts);

  std::vector<Sample> answer_prompts(engine::Runner& runner, api::AdapterSlot slot) const;
  // Positions that answers take in the cache, all prompts together.
  [[nodiscard]] int64_t num_cache_positions() const;

 private:
  [[nodiscard]] api::SampleRequest request_of(const std::vector<int32_t>& tokens,
                                              const model::ModelConfig& config,
                                              api::AdapterSlot slot) const;

  TextStack text_;
  std::vector<std::string> prompts_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<int32_t> stop_;
};

}  // namespace strata::apps
