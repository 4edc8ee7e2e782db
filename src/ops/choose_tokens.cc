// SPDX-License-Identifier: Apache-2.0
#include "ops/choose_tokens.h"

#include <algorithm>
#include <cmath>

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_logits(TensorView logits, TensorView lse) {
  CHECK(logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.dense(),
        logits.shape.to_string());
  if (lse.empty()) return;
  CHECK(lse.dtype == DType::kF32 && lse.shape == (Shape{logits.shape[0], 2}), lse.shape.to_string(),
        logits.shape.to_string());
}

void check_row(TensorView logits, int64_t row, size_t num_ids, size_t num_logprobs) {
  CHECK(row >= 0 && row < logits.rows(), row, logits.rows());
  CHECK(num_ids == num_logprobs, num_ids, num_logprobs);
}

void check_options(const TokenChoice& choice, int64_t vocab) {
  CHECK(choice.allowed.empty() || std::ssize(choice.allowed) == (vocab + 31) / 32,
        choice.allowed.size(), vocab);
  for (const LogitChange& change : choice.changes) {
    CHECK(change.token >= 0 && change.token < vocab, change.token, vocab);
    CHECK(std::isfinite(change.add), change.token, change.add);
  }
  const Penalties& p = choice.penalties;
  if (p.none()) return;
  CHECK(p.repetition > 0 && std::isfinite(p.repetition), p.repetition);
  CHECK(std::isfinite(p.frequency) && std::isfinite(p.presence), p.frequency, p.presence);
  for (const auto tokens : {choice.before.prompt, choice.before.drafts}) {
    for (const int32_t token : tokens) CHECK(token >= 0 && token < vocab, token, vocab);
  }
  for (const TokenCount& of : choice.before.answer)
    CHECK(of.token >= 0 && of.token < vocab && of.count > 0, of.token, of.count, vocab);
}

}  // namespace

void increment_token_count(std::vector<TokenCount>& counts, int32_t token) {
  const auto at = std::lower_bound(
      counts.begin(), counts.end(), token,
      [](const TokenCount& count, int32_t wanted) { return count.token < wanted; });
  if (at != counts.end() && at->token == token) {
    ++at->count;
  } else {
    counts.insert(at, {.token = token, .count = 1});
  }
}

std::vector<TokenCount> counts_of(std::span<const int32_t> tokens) {
  std::vector<TokenCount> counts;
  for (const int32_t token : tokens) increment_token_count(counts, token);
  return counts;
}

void choose_tokens(Backend& backend, TensorView logits, TensorView lse,
                   std::span<TokenChoice* const> choices) {
  check_logits(logits, lse);
  for (const TokenChoice* choice : choices) {
    check_row(logits, choice->row, choice->topk_ids.size(), choice->topk_logprobs.size());
    check_options(*choice, logits.cols());
  }
  backend.call()->choose_tokens.choose(backend, logits, lse, choices);
}

void draw_tokens(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs) {
  check_logits(logits, lse);
  check_row(logits, row, ids.size(), logprobs.size());
  backend.call()->choose_tokens.draw(backend, logits, lse, row, params, first_draw, ids, logprobs);
}

void compute_topk_logprobs(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                           std::span<int32_t> ids, std::span<float> logprobs) {
  check_logits(logits, lse);
  check_row(logits, row, ids.size(), logprobs.size());
  CHECK(std::ssize(ids) <= logits.cols(), ids.size(), logits.cols());
  backend.call()->choose_tokens.topk(backend, logits, lse, row, ids, logprobs);
}

}  // namespace strata::ops
