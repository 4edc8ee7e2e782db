// SPDX-License-Identifier: Apache-2.0
#include "sample/choose_tokens.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "ops/log_softmax.h"

namespace strata::sample {
namespace {

std::span<const float> values_of(TensorView logits, int64_t row) {
  CHECK(row >= 0 && row < logits.rows(), row, logits.rows());
  return {logits.f32() + row * logits.cols(), static_cast<size_t>(logits.cols())};
}

// From the raw row; `divided`, where logprobs are of it, receives the row divided by the
// temperature.
void choose(TensorView logits, TokenChoice& choice, float* divided) {
  const std::span<const float> values = values_of(logits, choice.row);
  if (divided != nullptr) {
    for (size_t i = 0; i < values.size(); ++i) divided[i] = values[i] / choice.params.temperature;
  }
  choice.token = choose_token(values, choice.params, choice.step_index);
}

// `values` are what logprobs are of, `lse` theirs.
void read_logprobs(std::span<const float> raw, const float* values, const float* lse,
                   TokenChoice& choice) {
  choice.logprob = ops::logprob(values[choice.token], lse);
  topk_logprobs(raw, lse, choice.topk_ids, choice.topk_logprobs);
  for (size_t i = 0; i < choice.topk_ids.size(); ++i)
    choice.topk_logprobs[i] = ops::logprob(values[choice.topk_ids[i]], lse);
  const bool is_number = std::isfinite(choice.logprob) &&
                         std::none_of(choice.topk_logprobs.begin(), choice.topk_logprobs.end(),
                                      [](float value) { return std::isnan(value); });
  if (!is_number)
    throw Error(ErrorCode::kInvalidArgument,
                "sample: the logits divided by the temperature are no numbers");
}

// scaled [n, V] and scaled_lse [n, 2] are room for the rows of the n choices that are scaled.
void choose_on_host(Backend& backend, TensorView logits, TensorView lse,
                    std::span<TokenChoice* const> choices, TensorView scaled,
                    TensorView scaled_lse) {
  std::vector<int64_t> scaled_row(choices.size(), -1);
  int64_t next = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i]->is_scaled()) scaled_row[i] = next++;
  }
  const HostAccess access(backend.allocator());
  const auto divided = [&](size_t i) {
    return scaled_row[i] < 0 ? nullptr : scaled.f32() + scaled_row[i] * logits.cols();
  };
  const auto count = static_cast<int64_t>(choices.size());
  backend.run_on_host(count, [&](int64_t item) {
    const auto i = static_cast<size_t>(item);
    try {
      choose(logits, *choices[i], divided(i));
    } catch (const std::exception& error) {  // of this row alone
      choices[i]->error = error.what();
    }
  });
  if (lse.empty()) return;
  if (next > 0) ops::logsumexp(backend, scaled, scaled_lse);
  for (size_t i = 0; i < choices.size(); ++i) {
    TokenChoice& choice = *choices[i];
    if (!choice.error.empty()) continue;
    const std::span<const float> raw = values_of(logits, choice.row);
    const float* own = divided(i);
    try {
      if (own == nullptr) {
        read_logprobs(raw, raw.data(), lse.f32() + 2 * choice.row, choice);
      } else {
        read_logprobs(raw, own, scaled_lse.f32() + 2 * scaled_row[i], choice);
      }
    } catch (const std::exception& error) {
      choice.error = error.what();
    }
  }
}

}  // namespace

void choose_tokens(Backend& backend, TensorView logits, TensorView lse,
                   std::span<TokenChoice* const> choices) {
  CHECK(logits.dtype == DType::kF32 && logits.dense(), logits.shape.to_string());
  const int64_t num_scaled = std::count_if(choices.begin(), choices.end(),
                                           [](const TokenChoice* c) { return c->is_scaled(); });
  const Scratch::Mark mark(backend.scratch());
  const TensorView scaled = backend.scratch().take(DType::kF32, {num_scaled, logits.cols()});
  const TensorView scaled_lse = backend.scratch().take(DType::kF32, {num_scaled, 2});
  backend.on_host([&] { choose_on_host(backend, logits, lse, choices, scaled, scaled_lse); });
}

void draw_tokens(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs) {
  backend.on_host([&] {
    const HostAccess access(backend.allocator());
    const std::span<const float> values = values_of(logits, row);
    draw_tokens(values, params.temperature, params.seed, first_draw, ids);
    for (size_t i = 0; i < ids.size(); ++i)
      logprobs[i] = ops::logprob(values[static_cast<size_t>(ids[i])], lse.f32() + 2 * row);
  });
}

void topk_logprobs(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                   std::span<int32_t> ids, std::span<float> logprobs) {
  backend.on_host([&] {
    const HostAccess access(backend.allocator());
    topk_logprobs(values_of(logits, row), lse.f32() + 2 * row, ids, logprobs);
  });
}

}  // namespace strata::sample
