// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/choose_tokens.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "ops/choose_tokens.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/sampler.h"
#include "ops/log_softmax.h"

namespace strata::ops::cpu {
namespace {

using Choices = std::span<TokenChoice* const>;

std::span<const float> values_of(TensorView logits, int64_t row) {
  return {logits.f32() + row * logits.cols(), static_cast<size_t>(logits.cols())};
}

// Rows of their own for the choices that need one, in scratch.
class OwnRows {
 public:
  template <typename Needs>
  OwnRows(CpuBackend& backend, Choices choices, int64_t cols, Needs needs)
      : row_of_(choices.size(), -1) {
    int64_t count = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (needs(*choices[i])) row_of_[i] = count++;
    }
    rows_ = backend.scratch().take(DType::kF32, {count, cols});
  }
  [[nodiscard]] TensorView all() const { return rows_; }
  [[nodiscard]] bool has(size_t i) const { return row_of_[i] >= 0; }
  [[nodiscard]] float* of(size_t i) const {
    return has(i) ? rows_.f32() + row_of_[i] * rows_.cols() : nullptr;
  }

 private:
  std::vector<int64_t> row_of_;
  TensorView rows_;
};

// From the row as it is, or as its changes leave it in `changed`. `divided`, where logprobs are of
// it, receives the row divided by the temperature.
void choose(TensorView logits, TokenChoice& choice, float* divided, float* changed) {
  std::span<const float> values = values_of(logits, choice.row);
  if (divided != nullptr) {
    for (size_t i = 0; i < values.size(); ++i) divided[i] = values[i] / choice.params.temperature;
  }
  if (changed != nullptr) {
    std::copy(values.begin(), values.end(), changed);
    for (const LogitChange& change : choice.changes) changed[change.token] += change.add;
    values = {changed, values.size()};
  }
  choice.token = choose_token(values, choice.params, choice.step_index);
}

// `values` are what logprobs are of, `lse` theirs.
void read_logprobs(std::span<const float> raw, const float* values, const float* lse,
                   TokenChoice& choice) {
  choice.logprob = logprob(values[choice.token], lse);
  topk_of_row(raw, lse, choice.topk_ids, choice.topk_logprobs);
  for (size_t i = 0; i < choice.topk_ids.size(); ++i)
    choice.topk_logprobs[i] = logprob(values[choice.topk_ids[i]], lse);
  const bool is_number = std::isfinite(choice.logprob) &&
                         std::none_of(choice.topk_logprobs.begin(), choice.topk_logprobs.end(),
                                      [](float value) { return std::isnan(value); });
  if (!is_number)
    throw Error(ErrorCode::kInvalidArgument,
                "sample: the logits divided by the temperature are no numbers");
}

void choose_each(CpuBackend& backend, TensorView logits, Choices choices, const OwnRows& scaled,
                 const OwnRows& changed) {
  backend.run_on_host(std::ssize(choices), [&](int64_t item) {
    const auto i = static_cast<size_t>(item);
    try {
      choose(logits, *choices[i], scaled.of(i), changed.of(i));
    } catch (const std::exception& error) {  // of this row alone
      choices[i]->error = error.what();
    }
  });
}

}  // namespace

void choose_tokens(CpuBackend& backend, TensorView logits, TensorView lse, Choices choices) {
  const Scratch::Mark mark(backend.scratch());
  const OwnRows scaled(backend, choices, logits.cols(),
                       [](const TokenChoice& choice) { return choice.is_scaled(); });
  const OwnRows scaled_lse(backend, choices, 2,
                           [](const TokenChoice& choice) { return choice.is_scaled(); });
  const OwnRows changed(backend, choices, logits.cols(),
                        [](const TokenChoice& choice) { return !choice.changes.empty(); });
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  choose_each(backend, logits, choices, scaled, changed);
  if (lse.empty()) return;
  if (scaled.all().rows() > 0) ops::logsumexp(backend, scaled.all(), scaled_lse.all());
  for (size_t i = 0; i < choices.size(); ++i) {
    TokenChoice& choice = *choices[i];
    if (!choice.error.empty()) continue;
    const std::span<const float> raw = values_of(logits, choice.row);
    try {
      if (scaled.has(i)) {
        read_logprobs(raw, scaled.of(i), scaled_lse.of(i), choice);
      } else {
        read_logprobs(raw, raw.data(), lse.f32() + 2 * choice.row, choice);
      }
    } catch (const std::exception& error) {
      choice.error = error.what();
    }
  }
}

void draw_tokens(CpuBackend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  const std::span<const float> values = values_of(logits, row);
  draw_from_row(values, params.temperature, params.seed, first_draw, ids);
  for (size_t i = 0; i < ids.size(); ++i)
    logprobs[i] = logprob(values[static_cast<size_t>(ids[i])], lse.f32() + 2 * row);
}

void topk_logprobs(CpuBackend& backend, TensorView logits, TensorView lse, int64_t row,
                   std::span<int32_t> ids, std::span<float> logprobs) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  topk_of_row(values_of(logits, row), lse.f32() + 2 * row, ids, logprobs);
}

}  // namespace strata::ops::cpu
