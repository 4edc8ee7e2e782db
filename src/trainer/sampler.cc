// SPDX-License-Identifier: Apache-2.0
#include "trainer/sampler.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/context.h"
#include "base/error.h"
#include "engine/sampling/sampling_loop.h"

namespace strata::apps {
namespace {

constexpr int64_t kPage = 64;  // positions that are taken at once

}  // namespace

TrainSampler::TrainSampler(const ModelTexts& model, const TemplateChoice& chat,
                           const std::vector<std::string>& prompts)
    : text_(model, chat), prompts_(prompts), stop_(text_.end_tokens().stop) {
  const bool is_chat = text_.has_template();
  for (const std::string& prompt : prompts) {
    const std::string text = is_chat ? text_.render_user_turn(prompt) : prompt;
    tokens_.push_back(is_chat ? text_.tokenizer().encode(text) : text_.encode_text(text));
    if (prompt.empty() || tokens_.back().empty()) {
      throw Error(ErrorCode::kInvalidArgument, "--sample: got a prompt without a token");
    }
  }
  if (!is_chat) return;
  if (const auto end = text_.find_turn_end_token()) stop_.push_back(*end);
}

int64_t TrainSampler::num_cache_positions() const {
  int64_t positions = 0;
  for (const auto& tokens : tokens_) {
    positions += (std::ssize(tokens) + kMaxTokens + kPage - 1) / kPage * kPage;
  }
  return positions;
}

api::SampleRequest TrainSampler::request_of(const std::vector<int32_t>& tokens,
                                            const model::ModelConfig& config,
                                            api::AdapterSlot slot) const {
  const int64_t context = config.context();
  const int64_t budget = context - std::ssize(tokens);
  if (budget < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--sample: a prompt of {} tokens, the model's context is {}{}", tokens.size(),
                    context, api::context_note(context, config.max_position_embeddings)));
  }
  return {.prompt = tokens,
          .slot = slot,
          .max_tokens = std::min(kMaxTokens, budget),
          .temperature = 0,
          .stop = stop_};
}

std::vector<Sample> TrainSampler::answer_prompts(engine::Runner& runner,
                                                 api::AdapterSlot slot) const {
  const model::ModelConfig& config = runner.engine().config();
  std::vector<api::SampleRequest> requests;
  for (const std::vector<int32_t>& tokens : tokens_)
    requests.push_back(request_of(tokens, config, slot));
  const std::vector<api::SampleResult> results = engine::sample(runner, requests);
  std::vector<Sample> samples;
  for (size_t i = 0; i < results.size(); ++i) {
    samples.push_back(
        {prompts_[i], text_.tokenizer().decode(results[i].tokens, /*skip_special=*/true)});
  }
  return samples;
}

}  // namespace strata::apps
