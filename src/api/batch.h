// SPDX-License-Identifier: Apache-2.0
// The nouns that travel between a front end (probe, train, generate, or serve's commands) and the
// engine. Plain values; the engine checks them before any compute (engine/engine.cc). N tokens of a
// datum, K targets of a token, T tokens of all sequences, V vocabulary, P tokens of a prompt.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "api/losses.h"

namespace strata::api {

// A model to run with: 0 is the base, others are adapters of the engine.
enum class AdapterSlot : int32_t { kBase = 0 };

// One training or scoring example: targets[t] is the label of tokens[t] (nothing is shifted).
struct Datum {
  std::vector<int32_t> tokens = {};             // [N], N >= 1
  std::vector<int32_t> targets = {};            // [N], or [N, K] row-major; empty: no loss
  ByLossInput<std::vector<float>> inputs = {};  // [N], weights as targets; empty: as its row says
  int64_t num_targets = 0;                      // K of 2-D targets; 0: they are 1-D

  [[nodiscard]] int64_t targets_per_token() const { return num_targets > 0 ? num_targets : 1; }
};

// A datum to run. Borrows it: the datum outlives the run.
struct Sequence {
  const Datum* datum = nullptr;
  AdapterSlot slot = AdapterSlot::kBase;
  Loss loss = {};
  bool gradients = true;  // takes those of its batch; false: is scored only
  // With a loss of pairs: the sum of its trained targets' logprobs by the reference model.
  float reference = 0.0f;
};

enum class Gradients : uint8_t {
  kNone,
  kAdapters,    // of every adapter in the batch that trains; accumulates until its optimizer step
  kParameters,  // of the base model; adapters take part frozen
};

struct Batch {
  std::vector<Sequence> sequences = {};
  Gradients gradients = Gradients::kNone;
  bool checked = false;    // by Engine::check, each of them
  bool want_loss = true;   // logprobs and losses; needs targets
  bool score_all = false;  // logprobs also where the weight is 0
  bool want_top = false;   // with losses: also the largest logprob of each token; not in stages
  // Into the sink: "hidden_states" [L + 1, T, D]; of n streams [L + 1, T, n D] and "final_hidden"
  // [T, D] with them.
  bool want_hidden_states = false;
  bool want_logits = false;  // into the sink: "logits" [T, V]
  // Not 0: also the loss of multi-token prediction, the cross-entropy of the targets one further,
  // with their weights; its gradient is multiplied by this. With want_logits also "mtp_logits"
  // [T, V], zero at each sequence's last token.
  float mtp_weight = 0.0f;
  // Not 0: where gradients are taken, also the loss that trains indexers of compressed attention
  // (ops/indexer_loss.h), one for each of their layers; its gradient is multiplied by this.
  float indexer_weight = 0.0f;
};

struct SequenceResult {
  std::vector<float> logprobs;  // as targets; without score_all 0 where the row has no weight
  std::vector<float> losses;    // likewise
  // As tokens, with want_top: the logprob of the most likely token, 0 where the row was not scored.
  std::vector<float> top_logprobs = {};
  std::vector<float> mtp_losses = {};  // as targets, with mtp_weight; 0 at the last token
  // As tokens, with indexer_weight: not multiplied by it, a sum over layers.
  std::vector<float> indexer_losses = {};
};

struct BatchResult {
  std::vector<SequenceResult> sequences;
  double loss_sum = 0.0;  // accumulated in double in request order
  double mtp_loss_sum = 0.0;
  double indexer_loss_sum = 0.0;
  int64_t num_passes = 0;
};

struct AdamW {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-12;
  double weight_decay = 0.0;
  double grad_clip_norm = 0.0;  // 0: off
};

struct StepResult {
  bool stepped = false;    // false: nothing was accumulated, nothing changed
  double grad_norm = 0.0;  // before clipping
  int64_t step = 0;        // steps done
};

// Ids to score at the positions of a prompt, row by row: those of row i at position i + 1.
struct PromptTargets {
  std::vector<int64_t> first = {};  // [P] where each row's ids begin, and the last end; empty: none
  std::vector<int32_t> ids = {};    // -1: nothing is asked

  [[nodiscard]] bool empty() const { return ids.empty(); }
  // Where those of the prompt's token at `position` (1 and up) begin and end in `ids`.
  [[nodiscard]] std::pair<size_t, size_t> range_of(int64_t position) const {
    if (empty()) return {0, 0};
    const auto row = static_cast<size_t>(position - 1);
    return {static_cast<size_t>(first[row]), static_cast<size_t>(first[row + 1])};
  }
};

// Added to a token's logit before anything else is done for the choice.
struct LogitBias {
  int32_t token = 0;
  float add = 0.0f;
};

// Ranges, neutral values and order of the options of the choice: api/sampling_options.h.
struct SampleRequest {
  std::vector<int32_t> prompt = {};  // non-empty
  AdapterSlot slot = AdapterSlot::kBase;
  int64_t max_tokens = 1;
  float temperature = 1.0f;  // 0: greedy
  int64_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<LogitBias> logit_bias = {};  // of one token: their sum
  uint64_t seed = 0;
  std::vector<int32_t> stop = {};  // ids that end the sample; the id is part of it
  bool prompt_logprobs = false;
  int64_t topk_prompt_logprobs = 0;
  // Prompt entries before this one are left out: they stay as if nothing was asked.
  int64_t first_prompt_logprob = 1;
  PromptTargets prompt_targets = {};
  // Tokens to draw at each position of the prompt after the first, with replacement, at the
  // temperature and without top-k and top-p.
  int64_t prompt_draws = 0;
  int64_t topk_sample_logprobs = 0;
  // Sampled logprobs of softmax(logits / temperature), as the server has it, and not of the raw
  // logits, as probe and generate have it. Equal at temperatures 0 and 1.
  bool scaled_logprobs = false;

  [[nodiscard]] bool wants_prompt_logprobs() const {
    return prompt_logprobs || topk_prompt_logprobs > 0;
  }
};

struct SampleResult {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;           // of the raw logits, or scaled_logprobs
  std::vector<int32_t> sample_topk_ids;  // [tokens, k] of the same distribution
  std::vector<float> sample_topk_logprobs;
  bool stopped = false;                       // by a stop id
  std::vector<float> prompt_logprobs;         // [P], entry 0 is 0
  std::vector<int32_t> topk_ids;              // [P, k], row 0 is 0
  std::vector<float> topk_logprobs;           // [P, k]
  std::vector<float> prompt_target_logprobs;  // as the targets' ids, 0 where none was asked
  std::vector<int32_t> prompt_draw_ids;       // [P - 1, prompt_draws]
  std::vector<float> prompt_draw_logprobs;    // likewise, of the raw logits
};

}  // namespace strata::api
