// SPDX-License-Identifier: Apache-2.0
// Preference pairs under a model and adapters: what the reference model gives their answers, and
// losses, rewards, margins and accuracy against it, as train evaluates and eval reports them. A
// reward is beta times what an answer's logprob is above the reference's; of orpo, which has no
// reference, beta times the mean logprob of its tokens. Engine thread only.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/function_ref.h"
#include "data/dataset.h"
#include "engine/runner.h"
#include "setup/loss_choice.h"

namespace strata::apps {

// What a batch takes of a choice of pairs.
api::Loss loss_of_pairs(const LossChoice& choice);

// Sums over pairs.
struct PairScore {
  int64_t num_pairs = 0;
  double loss_sum = 0;
  double chosen_sum = 0, rejected_sum = 0;  // rewards
  double num_right = 0;  // the chosen answer has the larger reward; equal ones count half
  // With orpo, the negative log-likelihoods of the chosen answers' and their prompts' tokens.
  double nll_sum = 0;
  int64_t num_nll_tokens = 0;

  // With orpo it has the chosen answers' own loss too; that is added here, so the batch has to
  // leave it out.
  [[nodiscard]] double loss() const { return loss_sum / static_cast<double>(num_pairs) + nll(); }
  [[nodiscard]] double nll() const {
    return num_nll_tokens == 0 ? 0 : nll_sum / static_cast<double>(num_nll_tokens);
  }
  [[nodiscard]] double chosen() const { return chosen_sum / static_cast<double>(num_pairs); }
  [[nodiscard]] double rejected() const { return rejected_sum / static_cast<double>(num_pairs); }
  [[nodiscard]] double margin() const { return chosen() - rejected(); }
  [[nodiscard]] double accuracy() const { return num_right / static_cast<double>(num_pairs); }
};

// What the reference model gives the answers of pairs, which are found again by what they are: the
// sum of their trained targets' logprobs. With a file they are kept as they are made, and read
// again. The file has so many bytes of a number that stands for the tokens, the model and all else
// that the sum depends on, and behind them the sum; whatever else it has is of other runs.
class References {
 public:
  // In memory alone.
  References() = default;
  // `key`: of all but the tokens. Only who `writes` adds to the file.
  References(const std::string& path, uint64_t key, bool writes);

  [[nodiscard]] float of(const data::Example& answer) const;
  [[nodiscard]] bool has(const data::Example& answer) const;
  // In memory; with a file it is there once flush() has returned.
  void add(const data::Example& answer, float sum);
  void flush();

 private:
  [[nodiscard]] uint64_t key_of(const data::Example& answer) const;

  std::string path_;
  uint64_t key_ = 0;
  bool writes_ = false;
  std::unordered_map<uint64_t, float> sums_;
  std::string waiting_;  // records to be written
};

// How many pairs have an answer without a sum.
int64_t count_without_reference(const data::Examples& pairs, const References& references);
// Makes those that are missing by this slot, whose model is the reference now; `done` is told how
// many of them are there by then. Collective.
void add_references(engine::Runner& pipeline, api::AdapterSlot slot, const data::Examples& pairs,
                    int64_t pass_tokens, References& references, FunctionRef<void(int64_t)> done);

// What a batch makes of pairs.
struct PairWeights {
  float pair = 1.0f;
  // What the loss of each token of a chosen answer and its prompt weighs; orpo alone has one.
  std::optional<float> own = {};
};

// Both answers of each of these pairs, the chosen one first, with weights where they are trained.
std::vector<api::Datum> read_pairs(const data::Examples& pairs, const std::vector<int64_t>& numbers,
                                   const PairWeights& weights = {});
// Makes a batch's sequences pairs: each gets the loss and what the reference gives it, where the
// loss has one.
void mark_as_pairs(std::span<api::Sequence> sequences, const api::Loss& loss,
                   const References& references);
// What came of sequences that are pairs, of which losses are multiplied by the weights.
void add_pair_results(std::span<const api::Sequence> sequences,
                      std::span<const api::SequenceResult> results, PairScore& score);

struct PairScores {
  PairScore total;
  std::vector<PairScore> files;  // of the dataset
};

// The scores of each slot. Passes have at most so many tokens, or one longer pair. Collective.
std::vector<PairScores> score_pairs(engine::Runner& pipeline,
                                    std::span<const api::AdapterSlot> slots,
                                    const data::Dataset& dataset, int64_t pass_tokens,
                                    const api::Loss& loss, const References& references);

}  // namespace strata::apps
