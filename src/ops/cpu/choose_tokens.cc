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

std::span<const float> logits_of_row(TensorView logits, int64_t row) {
  return {logits.f32() + row * logits.cols(), static_cast<size_t>(logits.cols())};
}

// Rows of their own, in scratch, for the choices that need one: those whose logprobs are of divided
// logits come first.
class OwnRows {
 public:
  OwnRows(CpuBackend& backend, Choices choices, int64_t cols) : row_of_(choices.size(), -1) {
    int64_t count = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (choices[i]->is_scaled()) row_of_[i] = count++;
    }
    num_scaled_ = count;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (!choices[i]->is_scaled() && choices[i]->is_changed()) row_of_[i] = count++;
    }
    rows_ = backend.scratch().take(DType::kF32, {count, cols});
    lse_ = backend.scratch().take(DType::kF32, {num_scaled_, 2});
  }
  [[nodiscard]] TensorView scaled() const { return rows_.slice_rows(0, num_scaled_); }
  [[nodiscard]] TensorView scaled_lse() const { return lse_; }
  [[nodiscard]] const float* lse_of(size_t i) const { return lse_.f32() + 2 * row_of_[i]; }
  [[nodiscard]] std::span<float> of(size_t i) const {
    if (row_of_[i] < 0) return {};
    return {rows_.f32() + row_of_[i] * rows_.cols(), static_cast<size_t>(rows_.cols())};
  }

 private:
  std::vector<int64_t> row_of_;
  int64_t num_scaled_ = 0;
  TensorView rows_, lse_;
};

// The logit of a token that came before, `in_answer` times in the answer.
float penalised(const Penalties& penalties, float logit, int64_t in_answer) {
  if (penalties.repetition != 1.0f)
    logit = logit > 0.0f ? logit / penalties.repetition : logit * penalties.repetition;
  if (in_answer == 0) return logit;
  logit -= penalties.frequency * static_cast<float>(in_answer);
  logit -= penalties.presence;
  return logit;
}

void apply_penalties(const Penalties& penalties, const TokensBefore& before,
                     std::span<float> logits) {
  std::vector<bool> seen(logits.size());
  const auto apply_once = [&](int32_t token, int64_t in_answer) {
    const auto id = static_cast<size_t>(token);
    if (seen[id]) return;
    seen[id] = true;
    logits[id] = penalised(penalties, logits[id], in_answer);
  };
  const auto in_drafts = [&](int32_t token) {
    return std::count(before.drafts.begin(), before.drafts.end(), token);
  };
  for (const TokenCount& of : before.answer) apply_once(of.token, of.count + in_drafts(of.token));
  for (const int32_t token : before.drafts) apply_once(token, in_drafts(token));
  if (penalties.repetition == 1.0f) return;
  for (const int32_t token : before.prompt) apply_once(token, 0);
}

// The choice's logits, in `own`.
void write_changed_logits(std::span<const float> raw, const TokenChoice& choice,
                          std::span<float> own) {
  std::copy(raw.begin(), raw.end(), own.begin());
  for (const LogitChange& change : choice.changes)
    own[static_cast<size_t>(change.token)] += change.add;
  if (!choice.penalties.none()) apply_penalties(choice.penalties, choice.before, own);
}

// `own`: a row for the changed logits, where the choice has some.
void choose_from_row(std::span<const float> raw, TokenChoice& choice, std::span<float> own) {
  if (choice.is_changed()) write_changed_logits(raw, choice, own);
  choice.token =
      choice.allowed.empty()
          ? choose_token(choice.is_changed() ? own : raw, choice.params, choice.step_index)
          : choose_allowed_token(own, choice.allowed, choice.params, choice.step_index);
}

// What logprobs of a scaled choice are of, in place of what it was made from.
void write_scaled_logits(std::span<const float> raw, const TokenChoice& choice,
                         std::span<float> own) {
  for (size_t i = 0; i < raw.size(); ++i) own[i] = raw[i] / choice.params.temperature;
}

void check_logprobs_are_numbers(const TokenChoice& choice) {
  const bool are_numbers = std::isfinite(choice.logprob) &&
                           std::none_of(choice.topk_logprobs.begin(), choice.topk_logprobs.end(),
                                        [](float value) { return std::isnan(value); });
  if (!are_numbers)
    throw Error(ErrorCode::kInvalidArgument,
                "sample: the logits divided by the temperature are no numbers");
}

// `values` are what logprobs are of, `lse` theirs.
void fill_logprobs(std::span<const float> raw, const float* values, const float* lse,
                   TokenChoice& choice) {
  choice.logprob = logprob(values[choice.token], lse);
  write_topk_of_row(raw, lse, choice.topk_ids, choice.topk_logprobs);
  for (size_t i = 0; i < choice.topk_ids.size(); ++i)
    choice.topk_logprobs[i] = logprob(values[choice.topk_ids[i]], lse);
  check_logprobs_are_numbers(choice);
}

void choose_each_row(CpuBackend& backend, TensorView logits, Choices choices, const OwnRows& own) {
  backend.run_on_host(std::ssize(choices), [&](int64_t item) {
    const auto i = static_cast<size_t>(item);
    try {
      const std::span<const float> raw = logits_of_row(logits, choices[i]->row);
      choose_from_row(raw, *choices[i], own.of(i));
      if (choices[i]->is_scaled()) write_scaled_logits(raw, *choices[i], own.of(i));
    } catch (const std::exception& error) {  // of this row alone
      choices[i]->error = error.what();
    }
  });
}

void fill_logprobs_of_each(TensorView logits, TensorView lse, Choices choices, const OwnRows& own) {
  for (size_t i = 0; i < choices.size(); ++i) {
    TokenChoice& choice = *choices[i];
    if (!choice.error.empty()) continue;
    const std::span<const float> raw = logits_of_row(logits, choice.row);
    try {
      if (choice.is_scaled()) {
        fill_logprobs(raw, own.of(i).data(), own.lse_of(i), choice);
      } else {
        fill_logprobs(raw, raw.data(), lse.f32() + 2 * choice.row, choice);
      }
    } catch (const std::exception& error) {
      choice.error = error.what();
    }
  }
}

}  // namespace

void choose_tokens(CpuBackend& backend, TensorView logits, TensorView lse, Choices choices) {
  const Scratch::Mark mark(backend.scratch());
  const OwnRows own(backend, choices, logits.cols());
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  choose_each_row(backend, logits, choices, own);
  if (lse.empty()) return;
  if (own.scaled().rows() > 0) ops::logsumexp(backend, own.scaled(), own.scaled_lse());
  fill_logprobs_of_each(logits, lse, choices, own);
}

void draw_tokens(CpuBackend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  const std::span<const float> values = logits_of_row(logits, row);
  draw_from_row(values, params.temperature, params.seed, first_draw, ids);
  for (size_t i = 0; i < ids.size(); ++i)
    logprobs[i] = logprob(values[static_cast<size_t>(ids[i])], lse.f32() + 2 * row);
}

void compute_topk_logprobs(CpuBackend& backend, TensorView logits, TensorView lse, int64_t row,
                           std::span<int32_t> ids, std::span<float> logprobs) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  write_topk_of_row(logits_of_row(logits, row), lse.f32() + 2 * row, ids, logprobs);
}

}  // namespace strata::ops::cpu
