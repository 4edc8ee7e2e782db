// SPDX-License-Identifier: Apache-2.0
// Checks of what a caller asks: everything is looked at before anything runs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "api/sampling_options.h"
#include "base/error.h"
#include "engine/engine.h"

namespace strata::engine {
namespace {

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

void check_ids(const std::vector<int32_t>& ids, int64_t vocab, std::string_view where,
               std::string_view field) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      fail(fmt::format("{}.{}[{}]: got id {}, want 0 to {}", where, field, i, ids[i], vocab - 1));
    }
  }
}

void check_length(size_t got, size_t tokens, std::string_view where, std::string_view field,
                  bool may_be_empty) {
  if (got == tokens || (may_be_empty && got == 0)) return;
  fail(fmt::format("{}.{}: got {} values, want {}", where, field, got, tokens));
}

void check_targets(const api::SampleRequest& request, int64_t vocab, const std::string& where) {
  const api::PromptTargets& targets = request.prompt_targets;
  if (targets.empty()) return;
  const auto count = static_cast<int64_t>(targets.ids.size());
  if (targets.first.size() != request.prompt.size() || targets.first.front() != 0 ||
      targets.first.back() != count ||
      !std::is_sorted(targets.first.begin(), targets.first.end())) {
    fail(fmt::format("{}.prompt_targets: {} rows that begin at {} numbers, want {} from 0 to {}",
                     where, request.prompt.size() - 1, targets.first.size(), request.prompt.size(),
                     count));
  }
  for (size_t i = 0; i < targets.ids.size(); ++i) {
    if (targets.ids[i] < -1 || targets.ids[i] >= vocab) {
      fail(fmt::format("{}.prompt_targets[{}]: got id {}, want -1 to {}", where, i, targets.ids[i],
                       vocab - 1));
    }
  }
}

void check_options(const api::SampleRequest& request, int64_t vocab, const std::string& where) {
  for (const api::SamplingOption& option : api::kSamplingOptions) {
    const float value = request.*option.field;
    if (!option.allows(value))
      fail(fmt::format("{}.{}: got {}, want {}", where, option.name, value, option.wanted));
  }
  const auto& biases = request.logit_bias;
  if (biases.size() > api::kMostLogitBiases) {
    fail(fmt::format("{}.logit_bias: got {} tokens, the limit is {}", where, biases.size(),
                     api::kMostLogitBiases));
  }
  for (const api::LogitBias& bias : biases) {
    if (bias.token < 0 || bias.token >= vocab) {
      fail(fmt::format("{}.logit_bias: got id {}, want 0 to {}", where, bias.token, vocab - 1));
    }
    if (!(std::abs(bias.add) <= api::kMostLogitBias)) {
      fail(fmt::format("{}.logit_bias: got {} for token {}, want {} to {}", where, bias.add,
                       bias.token, -api::kMostLogitBias, api::kMostLogitBias));
    }
  }
}

}  // namespace

void Engine::check(const api::Batch& batch) const {
  if (batch.sequences.empty()) fail("sequences: got none, want at least one");
  if (batch.gradients != api::Gradients::kNone && !batch.want_loss)
    fail("gradients need want_loss");
  if (!(batch.mtp_weight >= 0.0f) || std::isinf(batch.mtp_weight))
    fail(fmt::format("mtp_weight: got {}, want 0 or more", batch.mtp_weight));
  if (batch.mtp_weight > 0.0f && !model_.config.use_mtp)
    fail("mtp_weight: the model has no layer of multi-token prediction");
  if (!(batch.indexer_weight >= 0.0f) || std::isinf(batch.indexer_weight))
    fail(fmt::format("indexer_weight: got {}, want 0 or more", batch.indexer_weight));
  if (batch.indexer_weight > 0.0f && model_.weights->layers().num_indexers() == 0)
    fail("indexer_weight: no layer of the model has an indexer");
  for (size_t s = 0; s < batch.sequences.size(); ++s)
    check(batch.sequences[s], fmt::format("sequences[{}]", s), batch.want_loss);
}

void Engine::check(const api::Sequence& sequence, const std::string& where, bool want_loss) const {
  const api::Datum& datum = *sequence.datum;
  const api::LossRow& loss = api::row_of(sequence.loss.name);
  const size_t tokens = datum.tokens.size();
  if (tokens == 0) fail(where + ".tokens: got none, want at least one");
  check_ids(datum.tokens, model_.config.vocab_size, where, "tokens");
  static_cast<void>(adapter_or_base(sequence.slot));  // an Error when the slot is free
  const bool plain = loss.id == api::LossName::kCrossEntropy;
  if (datum.num_targets < 0 || (datum.num_targets > 1 && !plain)) {
    fail(fmt::format("{}.targets: got {} for each token, want {}", where, datum.num_targets,
                     plain ? "at least one" : "one with this loss"));
  }
  const size_t targets = tokens * static_cast<size_t>(datum.targets_per_token());
  check_length(datum.targets.size(), targets, where, "targets", !want_loss);
  check_ids(datum.targets, model_.config.vocab_size, where, "targets");
  for (const api::LossInputRow& input : api::kLossInputs) {
    const bool of_targets = input.id == api::LossInput::kWeights;
    const bool needed =
        want_loss && !of_targets &&
        std::find(loss.inputs.begin(), loss.inputs.end(), input.id) != loss.inputs.end();
    check_length(datum.inputs[input.id].size(), of_targets ? targets : tokens, where, input.name,
                 !needed);
  }
  if (loss.mean_over && want_loss) {
    const std::vector<float>& mask = datum.inputs[*loss.mean_over];
    if (!(std::accumulate(mask.begin(), mask.end(), 0.0) > 0.0)) {
      fail(fmt::format("{}.{}: {} takes the mean over the masked tokens, and there are none", where,
                       api::row_of(*loss.mean_over).name, loss.name));
    }
  }
  for (size_t i = 1; loss.options_ascend && i < loss.options.size(); ++i) {
    if (sequence.loss.options[i - 1] > sequence.loss.options[i]) {
      fail(fmt::format("{}.loss: {} exceeds {}", where, loss.options[i - 1].name,
                       loss.options[i].name));
    }
  }
}

void Engine::check(const api::SampleRequest& request, size_t index) const {
  const std::string where = fmt::format("sample[{}]", index);
  const int64_t vocab = model_.config.vocab_size;
  if (request.prompt.empty()) fail(where + ".tokens: got none, want at least one");
  check_ids(request.prompt, vocab, where, "tokens");
  static_cast<void>(adapter_or_base(request.slot));  // an Error when the slot is free
  if (request.max_tokens < 1)
    fail(fmt::format("{}.max_tokens: got {}, want at least 1", where, request.max_tokens));
  check_options(request, vocab, where);
  if (request.top_k < 0)
    fail(fmt::format("{}.top_k: got {}, want 0 (off) or more", where, request.top_k));
  if (request.topk_prompt_logprobs < 0 || request.topk_prompt_logprobs > vocab) {
    fail(fmt::format("{}.topk_prompt_logprobs: got {}, want 0 to {}", where,
                     request.topk_prompt_logprobs, vocab));
  }
  check_ids(request.stop, vocab, where, "stop");
  if (request.topk_sample_logprobs < 0 || request.topk_sample_logprobs > vocab) {
    fail(fmt::format("{}.topk_sample_logprobs: got {}, want 0 to {}", where,
                     request.topk_sample_logprobs, vocab));
  }
  if (request.prompt_draws < 0)
    fail(fmt::format("{}.prompt_draws: got {}, want 0 or more", where, request.prompt_draws));
  check_targets(request, vocab, where);
}

}  // namespace strata::engine
